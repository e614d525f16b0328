/** The other thread of `apart.ts`. */
import { parentPort, workerData } from 'node:worker_threads';
import type { MetApart } from './apart.ts';
import { reportOf } from './figures.ts';
import { rehearse } from './rehearse.ts';
import type { Traffic } from './traffic.ts';
import { recordedLimits, recordedWorld, usedBefore } from './world.ts';

const { header, calls } = workerData as Traffic;
const world = recordedWorld(recordedLimits(header, calls));
const begins = { startsAt: Date.parse(header.startedAt), used: usedBefore(header) };
const done = await rehearse(calls, { world, ...begins });
const met: MetApart = { fates: done.map(({ fate }) => fate), report: reportOf(done, world) };
parentPort?.postMessage(met);
