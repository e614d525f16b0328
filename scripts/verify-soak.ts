/**
 * `npm run verify:soak [-- --minutes=10 --seed=N]`: four replicas over one Redis, clients of every kind, and random faults of
 * Redis, upstream, replicas and clients. No call of a client that stayed is lost, none is made twice, and memory and descriptors
 * of the replica that lives through all of it stay flat. Exit code 1 when a promise was broken; the seed repeats the draws.
 */
import { parseArgs } from 'node:util';
import { createKey } from '../src/cli/keys.ts';
import { SeededRandom } from '../simulators/seeded-random.ts';
import { pause } from '../test/support/redis-fleet.ts';
import type { Ended } from './fleet/calls.ts';
import { startFleet, yamlOf, type Gateway } from './fleet/gateways.ts';
import { endAll, eventually } from './fleet/processes.ts';
import { noRedis, startServer } from './fleet/redis.ts';
import { remainsOf } from './fleet/remains.ts';
import { startUpstream } from './fleet/upstream.ts';
import { createReport, tally, type Report } from './report.ts';
import { Clients, lost, twice } from './soak/clients.ts';
import { strike } from './soak/faults.ts';
import { Replicas } from './soak/replicas.ts';
import { read, trendOf, type Reading } from './soak/resources.ts';

const { values } = parseArgs({ options: { minutes: { type: 'string' }, seed: { type: 'string' } } });
const minutes = Number(values.minutes ?? 10);
const seed = Number(values.seed ?? Date.now() % 1_000_000);
const callsPerSecond = 15;
const readEveryMs = 2_000;
/** Leases of killed replicas run out in this time at the latest, milliseconds. */
const cleanWithinMs = 120_000;

async function soak(report: Report): Promise<void> {
  const [redis, upstream] = [await startServer(), await startUpstream()];
  const [open, serial] = [createKey(), createKey()];
  const upstreamOf = (lane: 'open' | 'serial', limits: string): string =>
    `${lane}: { origins: ["${upstream.origins[lane]}"], allowPrivateAddresses: true, credential: "Bearer one", limits: { ${limits} } }`;
  const yaml = yamlOf({
    server: ['drainSeconds: 30, drainDelaySeconds: 2'],
    redis: `url: "${redis.url}"`,
    upstreams: [upstreamOf('open', 'requestsPerMinute: 1500'), upstreamOf('serial', 'maxInFlight: 1')],
    workspaces: [`open: { keys: ["${open.hash}"] }`, `serial: { keys: ["${serial.hash}"] }`],
  });
  const fleet = await startFleet(4, yaml);
  const [first] = fleet.gateways as [Gateway];
  const replicas = new Replicas(fleet, new SeededRandom(seed + 1));
  const keys = { open: open.key, serial: serial.key };
  const clients = new Clients({ keys, random: new SeededRandom(seed + 2), pick: () => replicas.pick() });
  const endsAt = Date.now() + minutes * 60_000;
  const isOver = (): boolean => Date.now() >= endsAt;
  const parts = { random: new SeededRandom(seed), redisPort: redis.port, upstream, replicas, clients };
  const readings: Reading[] = [];
  const reading = (async () => {
    for (; !isOver(); await pause(readEveryMs)) readings.push(await read(first));
  })();
  const striking = strike(parts, isOver);
  for (; !isOver(); await pause(1_000 / callsPerSecond)) clients.send();
  const faults = await striking;
  await reading;
  const calls = await clients.ended();
  report.figure(`${new Set(faults).size} kinds of faults: ${tally(faults)}`);
  report.figure(`${calls.length} calls: ${tally(calls.map(({ fate }) => fate.kind))}; ${inWords(calls)}`);
  const judged = [
    ['no call is lost', lost(calls, upstream)],
    ['no call is made twice', twice(calls, upstream)],
  ] as const;
  for (const [claim, found] of judged)
    report.check(claim, found.length === 0, [found.length, ...found.slice(0, 20)].join('\n'));
  const { isFlat, words } = trendOf(readings);
  report.figure(words);
  report.check('memory and descriptors are flat', isFlat, words);
  const isClean = await eventually(async () => (await remainsOf(redis.port)).isClean, cleanWithinMs);
  report.check('nothing is left behind in Redis', isClean, (await remainsOf(redis.port)).words);
  await fleet.stop();
  upstream.stop();
}

/** What clients met on the way. */
const inWords = (calls: readonly Ended[]): string => {
  const met = calls.flatMap(({ attempts }) => attempts.map(({ ended }) => ended));
  const words = met.map((one) =>
    one.kind === 'refused' ? one.code : one.kind === 'broken' ? one.words : one.status,
  );
  return tally(words.map(String));
};

const report = createReport('soak');
const why = await noRedis();
if (why === null) {
  console.log(`soak of ${minutes} minutes; --seed=${seed} repeats its draws`);
  await soak(report).catch((failure: unknown) =>
    report.check('the soak ran to its end', false, String(failure)),
  );
} else report.skipped('soak', why);
await endAll();
process.exit(report.end());
