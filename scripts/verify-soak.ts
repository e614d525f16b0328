/**
 * `npm run verify:soak [-- --minutes=10 --seed=N]`: four replicas over one Redis, clients of every kind, and random faults of
 * Redis, upstream, replicas and clients. No call of a client that stayed is lost, none is made twice, and memory and descriptors
 * of the replica that lives through all of it stay flat. Exit code 1 when a promise was broken; the seed repeats the draws.
 */
import { createKey } from '../src/cli/keys.ts';
import { SeededRandom } from '../simulators/seeded-random.ts';
import { redisBinary } from '../test/support/redis.ts';
import { pause } from '../test/support/redis-fleet.ts';
import { endAll, startServer, until } from './cluster/processes.ts';
import { left, nothingLeft, remainsInWords } from './cluster/remains.ts';
import { createReport, tally, type Report } from './report.ts';
import { Clients } from './soak/clients.ts';
import { strike } from './soak/faults.ts';
import { Ledger } from './soak/ledger.ts';
import { startReplicas } from './soak/replicas.ts';
import { read, trendOf, type Reading } from './soak/resources.ts';
import { startUpstream } from './soak/upstream.ts';

function option(name: string, otherwise: number): number {
  const given = process.argv.find((word) => word.startsWith(`--${name}=`));
  return given === undefined ? otherwise : Number(given.slice(name.length + 3));
}

const minutes = option('minutes', 10);
const seed = option('seed', Date.now() % 1_000_000);
const callsPerSecond = 15;
const readEveryMs = 2_000;
/** Leases of killed replicas run out in this time at the latest, milliseconds. */
const cleanWithinMs = 120_000;

const yamlOf = (redisUrl: string, origins: readonly string[], hashes: readonly string[]): string =>
  [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 30, drainDelaySeconds: 2 }',
    `redis: { url: "${redisUrl}" }`,
    'privacy: { labelKey: "a label key of the soak" }',
    'log: { level: info, sampleSuccesses: 0 }',
    'upstreams:',
    `  open: { origins: ["${origins[0] ?? ''}"], allowPrivateAddresses: true, credential: "Bearer open", limits: { requestsPerMinute: 1500 } }`,
    `  serial: { origins: ["${origins[1] ?? ''}"], allowPrivateAddresses: true, credential: "Bearer serial", limits: { maxInFlight: 1 } }`,
    'workspaces:',
    `  open: { keys: ["${hashes[0] ?? ''}"] }`,
    `  held: { keys: ["${hashes[1] ?? ''}"] }`,
  ].join('\n');

const first = (lines: readonly string[]): string => lines.slice(0, 20).join('\n         ');

async function soak(report: Report): Promise<void> {
  const ledger = new Ledger();
  const redis = await startServer();
  const upstream = await startUpstream(ledger, new SeededRandom(seed + 1));
  const [open, held] = [createKey(), createKey()];
  const replicas = await startReplicas(4, yamlOf(redis.url, upstream.origins, [open.hash, held.hash]));
  const keys = { open: open.key, held: held.key };
  const clients = new Clients({ replicas, ledger, keys, random: new SeededRandom(seed + 2) });
  const endsAt = Date.now() + minutes * 60_000;
  const isOver = (): boolean => Date.now() >= endsAt;
  const faults: string[] = [];
  const readings: Reading[] = [];
  const striking = strike(
    { random: new SeededRandom(seed), redisPort: redis.port, upstream, replicas, clients },
    { isOver, onFault: (name) => void faults.push(name) },
  );
  const reading = (async () => {
    for (; !isOver(); await pause(readEveryMs)) readings.push(await read(replicas.first));
  })();
  for (; !isOver(); await pause(1_000 / callsPerSecond)) clients.send();
  await Promise.all([striking, reading]);
  await clients.settled();
  report.figure(`${new Set(faults).size} kinds of faults: ${tally(faults)}`);
  report.figure(
    `${ledger.summary()}; refusals followed ${clients.refused}, kept connections closed in the moment of a call ${clients.stale}, upstream 429s ${upstream.throttled}; ` +
      `answered after more than 180 s, by following refusals ${clients.late}; the longest serialized call took ${(clients.maxHeldMs / 1_000).toFixed(1)} s`,
  );
  const [lost, twice] = [ledger.lost(), ledger.twice()];
  report.check('no call is lost', lost.length === 0, `${lost.length}: ${first(lost)}`);
  report.check('no call is made twice', twice.length === 0, `${twice.length}: ${first(twice)}`);
  const { isFlat, words } = trendOf(readings);
  report.figure(words);
  report.check('memory and descriptors are flat', isFlat, words);
  const isClean = await until(async () => nothingLeft(await left(redis.port)), cleanWithinMs);
  report.check('nothing is left behind in Redis', isClean, remainsInWords(await left(redis.port)));
  await replicas.stop();
  upstream.stop();
}

const report = createReport('soak');
const binary = await redisBinary().catch((failure: unknown) => String(failure));
if (binary.startsWith('/')) {
  console.log(`soak of ${minutes} minutes; --seed=${seed} repeats its draws`);
  await soak(report).catch((failure: unknown) =>
    report.check('the soak ran to its end', false, String(failure)),
  );
} else report.skipped('soak', binary);
await endAll();
process.exit(report.end());
