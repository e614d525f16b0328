/**
 * What sharing the limiter costs by itself, without HTTP and upstreams around it: `node bench/limiters.ts` (REPLICAS=1,3, ROUNDS=9,
 * CALLS=3000, SECONDS=4, WARMUP=6000, LIMITERS=log; `embedded` has no Redis; `log@<folder>` is another copy of the product, and `scripts@<folder>` one from before there was a log).
 *
 * Every limiter with every number of replicas has processes and a Redis of its own (`limiter-replica.ts`); all are measured in turn in
 * each round, and compared within it with the last limiter. One bucket, whose quota is never used up, and a ceiling.
 *
 * - replicas: CPU of all replicas together per call. Redis: CPU of the server per call, all commands.
 * - another's call: CPU of each other replica per call while one takes all of them, less what it uses while nobody calls.
 * - idle: CPU of a replica, and of Redis, per second without a call.
 * - ms until granted: median. FAR_MS=40 holds back every byte to and from Redis for so long.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { cpuMs } from './gateway.ts';
import { startMeasured, type MeasuredRedis } from './measured-redis.ts';
import { median, pairedRatio } from './paired.ts';
import type { Pace } from './proxies.ts';

/** What a replica is told to do. */
export interface Stretch {
  readonly pace: Pace;
  readonly calls: number;
  readonly buckets: number;
}

/** What it says when it has done that. */
export interface Taken {
  readonly medianMs: number;
  readonly failures: readonly string[];
}

interface Fleet {
  readonly name: string;
  readonly limiter: string;
  readonly replicas: readonly ChildProcess[];
  readonly redis: MeasuredRedis;
  /** By row and figure, one number a round. */
  readonly figures: Map<string, Map<string, number[]>>;
}

const setting = (name: string, otherwise: number): number => Number(process.env[name] ?? otherwise);
const rounds = setting('ROUNDS', 9);
const seconds = setting('SECONDS', 4);
const warmUp = setting('WARMUP', 6_000);
const farMs = setting('FAR_MS', 0);
const counts = (process.env['REPLICAS'] ?? '1,3').split(',').map(Number);
const limiters = (process.env['LIMITERS'] ?? 'log').split(',');

const paced = (perSecond: number): Stretch & { name: string } => ({
  name: `${perSecond.toLocaleString('en')}/s`,
  pace: { perSecond },
  calls: perSecond * seconds,
  buckets: 1,
});
const calls = setting('CALLS', 3_000);
const rows: readonly (Stretch & { readonly name: string })[] = [
  { name: '64 connections', pace: { connections: 64 }, calls, buckets: 1 },
  { name: '64, 100 buckets', pace: { connections: 64 }, calls, buckets: 100 },
  { name: '1 connection', pace: { connections: 1 }, calls: Math.ceil(calls / 4), buckets: 1 },
  paced(1_500),
  paced(200),
].filter(({ name }) => (process.env['ROWS'] ?? name).split(';').includes(name));

const fleets: Fleet[] = [];
try {
  for (const count of counts) for (const limiter of limiters) fleets.push(await startFleet(limiter, count));
  for (const fleet of fleets)
    for (const buckets of [1, 100])
      await run(fleet.replicas, { pace: { connections: 64 }, calls: warmUp, buckets });
  for (let round = 0; round < rounds; round += 1) {
    for (const fleet of round % 2 === 0 ? fleets : fleets.toReversed()) {
      const idle = await measureIdle(fleet);
      for (const row of rows) await measure(fleet, row, idle);
    }
    // A run that is ended early has told what it has.
    print(round + 1);
  }
} finally {
  // Relays may hold connections open.
  setTimeout(() => process.exit(), 1_000).unref();
  for (const { replicas } of fleets) for (const replica of replicas) replica.disconnect();
  for (const { redis } of fleets) await redis.stop();
}

async function startFleet(limiter: string, count: number): Promise<Fleet> {
  const [kind = '', cwd = process.cwd()] = limiter.split('@');
  const redis = await startMeasured();
  const url = farMs === 0 ? redis.url : `redis://127.0.0.1:${await startRelay(redis)}`;
  const replicas: ChildProcess[] = [];
  for (let n = 0; n < count; n += 1) {
    const execArgv = ['--max-semi-space-size=16', ...(process.env['NODE_ARGUMENTS']?.split(' ') ?? [])];
    const env = { ...process.env, SLUICE_LIMITER: kind };
    const replica = fork(join(cwd, 'bench/limiter-replica.ts'), [url], { cwd, env, execArgv });
    const exited = once(replica, 'exit').then(() => {
      throw new Error(`a replica of ${limiter} ended before it was ready`);
    });
    await Promise.race([once(replica, 'message'), exited]);
    exited.catch(() => {});
    replicas.push(replica);
  }
  return { name: `${limiter}, ${count} replicas`, limiter, replicas, redis, figures: new Map() };
}

/** Relays to the server, every chunk `farMs` late in each direction. Resolves with its port. */
async function startRelay(redis: MeasuredRedis): Promise<number> {
  const late = (from: Socket, to: Socket): void => {
    from.on('data', (chunk) => setTimeout(() => to.writable && to.write(chunk), farMs));
    from.on('close', () => to.destroy());
    from.on('error', () => {});
  };
  const relay = createServer({ noDelay: true }, (near) => {
    const far = connect({ port: Number(new URL(redis.url).port), host: '127.0.0.1', noDelay: true });
    late(near, far);
    late(far, near);
  });
  relay.unref();
  relay.listen(0, '127.0.0.1');
  await once(relay, 'listening');
  return (relay.address() as AddressInfo).port;
}

/** Each replica takes its part of the calls. Resolves with the medians of the times that they waited. */
async function run(
  replicas: readonly ChildProcess[],
  { pace, calls: all, buckets }: Stretch,
): Promise<number> {
  const part = replicas.length;
  const each: Stretch = {
    pace:
      'connections' in pace
        ? { connections: Math.ceil(pace.connections / part) }
        : { perSecond: pace.perSecond / part },
    calls: Math.ceil(all / part),
    buckets,
  };
  const taken = await Promise.all(
    replicas.map(async (replica): Promise<Taken> => {
      replica.send(each);
      const [message] = (await once(replica, 'message')) as [Taken];
      return message;
    }),
  );
  const failures = taken.flatMap((one) => one.failures);
  if (failures.length > 0) throw new Error(`${failures.length} failures, the first: ${failures[0] ?? ''}`);
  return median(taken.map(({ medianMs }) => medianMs));
}

function cpuUsOf(replicas: readonly ChildProcess[]): number {
  return replicas.reduce((sum, { pid = 0 }) => sum + 1_000 * cpuMs(pid), 0);
}

async function measure(
  fleet: Fleet,
  row: Stretch & { readonly name: string },
  idleUs: number,
): Promise<void> {
  const { replicas, redis } = fleet;
  const from = cpuUsOf(replicas);
  const redisFrom = await redis.cpuUs();
  const medianMs = await run(replicas, row);
  note(fleet, row.name, 'Redis', ((await redis.cpuUs()) - redisFrom) / row.calls);
  note(fleet, row.name, 'replicas', (cpuUsOf(replicas) - from) / row.calls);
  note(fleet, row.name, 'ms until granted', medianMs);
  const [first, ...others] = replicas;
  if (first === undefined || others.length === 0) return;
  const othersFrom = cpuUsOf(others);
  const startedAt = performance.now();
  await run([first], row);
  const used =
    (cpuUsOf(others) - othersFrom) / others.length - (idleUs * (performance.now() - startedAt)) / 1_000;
  note(fleet, row.name, "another's call", used / row.calls);
}

/** Microseconds of CPU that a replica uses in a second without a call. */
async function measureIdle(fleet: Fleet): Promise<number> {
  const { replicas, redis } = fleet;
  await pause(1_500);
  const startedAt = performance.now();
  const from = cpuUsOf(replicas);
  const redisFrom = await redis.cpuUs();
  await pause(seconds * 500);
  const took = (performance.now() - startedAt) / 1_000;
  const eachUs = (cpuUsOf(replicas) - from) / replicas.length / took;
  note(fleet, 'idle, a second', 'Redis', ((await redis.cpuUs()) - redisFrom) / took);
  note(fleet, 'idle, a second', 'replicas', eachUs);
  return eachUs;
}

function note({ figures }: Fleet, row: string, figure: string, value: number): void {
  const ofRow = figures.get(row) ?? new Map<string, number[]>();
  figures.set(row, ofRow);
  ofRow.set(figure, [...(ofRow.get(figure) ?? []), value]);
}

function print(done: number): void {
  const load = (loadavg()[0] ?? NaN).toFixed(1);
  console.log(
    `${done} of ${rounds} interleaved rounds, medians, microseconds of CPU a call, Node ${process.versions.node}, load average ${load}`,
  );
  for (const count of counts) {
    const beside = fleets.filter(({ replicas }) => replicas.length === count);
    const last = beside.at(-1);
    for (const [row, figures] of last?.figures ?? [])
      for (const [figure, lasts] of figures) {
        const each = beside.map(({ limiter, figures: its }) => {
          const values = its.get(row)?.get(figure) ?? [];
          return `${limiter} ${median(values).toFixed(1)} (${pairedRatio(values, lasts).toFixed(2)})`;
        });
        console.log(`  ${count} replicas  ${row.padEnd(16)} ${figure.padEnd(16)} ${each.join('  ')}`);
      }
  }
}
