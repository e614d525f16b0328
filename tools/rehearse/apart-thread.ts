/** The other thread of `apart.ts`. */
import { parentPort, workerData } from 'node:worker_threads';
import type { Apart, MetApart } from './apart.ts';
import { reportOf } from './figures.ts';
import { rehearse } from './rehearse.ts';
import { recordedLimits, recordedWorld, usedBefore } from './world.ts';

const { traffic, wantsFates } = workerData as Apart;
const { header, calls } = traffic;
const world = recordedWorld(recordedLimits(header, calls));
const begins = { startsAt: Date.parse(header.startedAt), used: usedBefore(header) };
const done = await rehearse(calls, { world, ...begins });
const fates = wantsFates ? done.map(({ fate }) => fate) : [];
const met: MetApart = { report: reportOf(done, world), fates };
parentPort?.postMessage(met);
