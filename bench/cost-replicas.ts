/**
 * What a call costs where replicas share one upstream, in one interleaved run beside plain express and http-proxy-middleware:
 * `npm run bench:cost -- --replicas=1,3,10` (ROUNDS=7, CALLS=3000, SECONDS=4, WARMUP=10000, WARMUP_SECONDS=8).
 *
 * Every number of replicas is a fleet of its own with a Redis of its own; one workspace calls through all of its replicas in turn.
 * Each fleet, and plain, is measured saturated (64 connections in all) and at 1,500 and 200 calls a second in all (open loop).
 *
 * - gateways: CPU of all replicas together per call of the fleet. Redis: CPU of the server per call of the fleet.
 * - another's call: what a replica spends on a call that another replica takes. All calls go to one replica for it; it is the CPU
 *   of each other one per call, less what that one uses while nobody calls.
 * - idle: CPU of a replica, and of the fleet's Redis, per second without a call, in a fleet that has just been called.
 *
 * Ten replicas of two limiters take an hour on a busy machine; how far it is, is told on stderr.
 *
 * Nothing is taken out of the CPU of gateways and Redis: replicas live whether anybody calls or not, and at few calls that is
 * what they cost. Everything shares the machine. Absolute figures belong to it; ratios carry over.
 */
import { mkdtempSync } from 'node:fs';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { record } from '../scripts/nightly/figures.ts';
import { cpuMs, writeConfig } from './gateway.ts';
import { startMeasured, type MeasuredRedis } from './measured-redis.ts';
import { median, pairedRatio } from './paired.ts';
import {
  endProxies,
  load,
  startGateway,
  startPlain,
  startUpstream,
  type Pace,
  type Started,
} from './proxies.ts';

/** How a fleet is called, and by how many calls it is measured. */
interface Stretch {
  readonly name: string;
  readonly pace: Pace;
  readonly calls: number;
}

/** What the rounds of one stretch came to. CPU in microseconds. */
interface Measured {
  /** Of all processes of the fleet, per call. */
  readonly gatewaysUs: number[];
  /** Of Redis, per call. */
  readonly redisUs: number[];
  /** Of a replica, per call of another one. */
  readonly othersUs: number[];
  readonly callsPerSecond: number[];
}

/** One or more processes behind which the same upstream stands, and what was measured of them. */
interface Fleet {
  readonly name: string;
  readonly processes: readonly Started[];
  /** `null`: they share nothing. */
  readonly redis: MeasuredRedis | null;
  readonly path: string;
  readonly headers: () => Readonly<Record<string, string>>;
  readonly measured: ReadonlyMap<Stretch, Measured>;
  readonly idle: Idle;
}

/** What is used while nobody calls, by round, microseconds of CPU a second. */
interface Idle {
  readonly eachUs: number[];
  readonly redisUs: number[];
}

/** A copy of the product to measure. */
export interface Copy {
  /** Before the names of its fleets; empty where there is one copy only. */
  readonly name: string;
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
}

const setting = (name: string, otherwise: number): number => Number(process.env[name] ?? otherwise);
const rounds = setting('ROUNDS', 7);
const seconds = setting('SECONDS', 4);
/** Each process has served for so long, and so many calls, before it is measured: only then is its code compiled for good. */
const warmUp = { seconds: setting('WARMUP_SECONDS', 8), callsEach: setting('WARMUP', 10_000) };
const saturating: Pace = { connections: 64 };

const stretches: readonly Stretch[] = [
  { name: 'saturated', pace: saturating, calls: setting('CALLS', 3_000) },
  ...[1_500, 200].map((perSecond) => ({
    name: `${perSecond.toLocaleString('en')}/s`,
    pace: { perSecond },
    calls: perSecond * seconds,
  })),
];

/**
 * Measures each copy with each number of replicas; their configurations go into the folder. The first copy's figures are
 * recorded for the nightly run.
 */
export async function measureReplicas(
  folder: string,
  counts: readonly number[],
  copies: readonly Copy[],
): Promise<void> {
  const servers: MeasuredRedis[] = [];
  try {
    const upstream = await startUpstream();
    const origin = `http://127.0.0.1:${upstream.port}`;
    const plain = await startPlainFleet(upstream.port);
    const fleets: Fleet[] = [];
    const recorded = new Set<Fleet>();
    for (const count of counts) {
      for (const [at, copy] of copies.entries()) {
        const redis = await startMeasured();
        servers.push(redis);
        const fleet = await startFleet(mkdtempSync(join(folder, 'fleet-')), { copy, count, origin, redis });
        fleets.push(fleet);
        if (at === 0) recorded.add(fleet);
      }
    }
    const all = [plain, ...fleets];
    for (const fleet of all) {
      await warm(fleet);
      console.error(`${fleet.name}: has served its first calls`);
    }
    for (let round = 0; round < rounds; round += 1) {
      console.error(`round ${round + 1} of ${rounds}`);
      await measureIdle(fleets);
      for (const stretch of stretches)
        for (const fleet of round % 2 === 0 ? all : all.toReversed()) await measure(fleet, stretch);
    }
    console.log(
      `${rounds} interleaved rounds, medians, Node ${process.versions.node}, load average ${(loadavg()[0] ?? NaN).toFixed(1)}`,
    );
    for (const stretch of stretches) for (const fleet of all) print(fleet, stretch, plain);
    for (const fleet of fleets) printIdle(fleet);
    for (const fleet of recorded) leave(fleet, plain);
  } finally {
    endProxies();
    for (const server of servers) await server.stop();
  }
}

const nothingMeasured = (): Fleet['measured'] =>
  new Map(
    stretches.map((stretch) => [stretch, { gatewaysUs: [], redisUs: [], othersUs: [], callsPerSecond: [] }]),
  );

async function startPlainFleet(upstreamPort: number): Promise<Fleet> {
  return {
    name: 'plain express + http-proxy-middleware',
    processes: [await startPlain(upstreamPort)],
    redis: null,
    path: '/v1/things?a=b',
    headers: () => ({}),
    measured: nothingMeasured(),
    idle: { eachUs: [], redisUs: [] },
  };
}

async function startFleet(
  folder: string,
  {
    copy,
    count,
    origin,
    redis,
  }: {
    readonly copy: Copy;
    readonly count: number;
    readonly origin: string;
    readonly redis: MeasuredRedis;
  },
): Promise<Fleet> {
  const unlimited = ['kind: generic', 'limits: { requestsPerMinute: 100000000, requestsPerDay: none }'];
  const { config, key } = writeConfig(folder, origin, unlimited, [], redis.url);
  const processes: Started[] = [];
  // One after the other: many that start at once keep each other from connecting in time.
  for (let n = 0; n < count; n += 1) processes.push(await startGateway(config, copy));
  return {
    name: `${copy.name === '' ? '' : `${copy.name}: `}${count} ${count === 1 ? 'replica' : 'replicas'}`,
    processes,
    redis,
    path: `/proxy?target=${encodeURIComponent(`${origin}/v1/things?a=b`)}`,
    headers: () => ({ authorization: `Bearer ${key}` }),
    measured: nothingMeasured(),
    idle: { eachUs: [], redisUs: [] },
  };
}

async function warm(fleet: Fleet): Promise<void> {
  const batch = 500;
  const startedAt = performance.now();
  for (
    let calls = 0;
    calls < warmUp.callsEach * fleet.processes.length ||
    performance.now() - startedAt < warmUp.seconds * 1000;
    calls += batch
  )
    await call(fleet, fleet.processes, { pace: saturating, calls: batch });
}

const call = (
  { path, headers }: Fleet,
  to: readonly Started[],
  { pace, calls }: Omit<Stretch, 'name'>,
): Promise<number> => load({ ports: to.map(({ port }) => port), path, headers, calls, pace });

const cpuUsOf = (processes: readonly Started[]): number =>
  processes.reduce((sum, { pid }) => sum + 1000 * cpuMs(pid), 0);

async function measure(fleet: Fleet, stretch: Stretch): Promise<void> {
  const { processes, redis } = fleet;
  const measured = fleet.measured.get(stretch);
  const [first, ...others] = processes;
  if (measured === undefined || first === undefined) throw new Error(`nothing to measure of ${fleet.name}`);
  const gatewaysFrom = cpuUsOf(processes);
  const redisFrom = (await redis?.cpuUs()) ?? 0;
  const ms = await call(fleet, processes, stretch);
  measured.redisUs.push((((await redis?.cpuUs()) ?? 0) - redisFrom) / stretch.calls);
  measured.gatewaysUs.push((cpuUsOf(processes) - gatewaysFrom) / stretch.calls);
  measured.callsPerSecond.push((stretch.calls * 1000) / ms);
  if (others.length === 0) return;
  const othersFrom = cpuUsOf(others);
  const othersMs = await call(fleet, [first], stretch);
  const idleShare = ((fleet.idle.eachUs.at(-1) ?? NaN) * othersMs) / 1000;
  measured.othersUs.push(((cpuUsOf(others) - othersFrom) / others.length - idleShare) / stretch.calls);
}

/** Of all fleets at the same time, once what the last calls left to do is done. */
async function measureIdle(fleets: readonly Fleet[]): Promise<void> {
  const look = () =>
    Promise.all(
      fleets.map(async ({ processes, redis }) => ({
        eachUs: cpuUsOf(processes) / processes.length,
        redisUs: (await redis?.cpuUs()) ?? 0,
      })),
    );
  await pause(2_000);
  const from = await look();
  const startedAt = performance.now();
  await pause(seconds * 1000);
  const took = (performance.now() - startedAt) / 1000;
  const to = await look();
  for (const [at, { idle }] of fleets.entries())
    for (const figure of ['eachUs', 'redisUs'] as const)
      idle[figure].push(((to[at]?.[figure] ?? NaN) - (from[at]?.[figure] ?? NaN)) / took);
}

const us = (value: number): string => `${value.toFixed(0).padStart(6)} µs`;

function print(fleet: Fleet, stretch: Stretch, plain: Fleet): void {
  const measured = fleet.measured.get(stretch);
  const yardstick = plain.measured.get(stretch);
  if (measured === undefined || yardstick === undefined) return;
  const { gatewaysUs, redisUs, othersUs, callsPerSecond } = measured;
  const ratio =
    fleet === plain ? '' : `(${pairedRatio(gatewaysUs, yardstick.gatewaysUs).toFixed(2)} x plain)`;
  const others = othersUs.length === 0 ? '' : `, ${median(othersUs).toFixed(1)} µs for another's call`;
  const rest = fleet.redis === null ? '' : `, ${us(median(redisUs)).trim()} of Redis${others}`;
  console.log(
    `  ${stretch.name.padEnd(10)} ${fleet.name.padEnd(40)} ${us(median(gatewaysUs))} ${ratio} a call` +
      `${rest}; ${median(callsPerSecond).toFixed(0)} calls/s`,
  );
}

function printIdle({ name, idle }: Fleet): void {
  const ms = (values: readonly number[]): string => (median(values) / 1000).toFixed(1);
  console.log(
    `  idle       ${name.padEnd(40)} ${ms(idle.eachUs)} ms of CPU a second each, ${ms(idle.redisUs)} ms of Redis`,
  );
}

/** For the nightly run: absolute times belong to the machine, ratios to the code. */
function leave({ name, measured, idle }: Fleet, plain: Fleet): void {
  for (const [stretch, { gatewaysUs, redisUs, othersUs }] of measured) {
    const row = `${name}, ${stretch.name}`;
    const ratio = pairedRatio(gatewaysUs, plain.measured.get(stretch)?.gatewaysUs ?? []);
    record(
      { name: `CPU of the gateways: ${row}`, value: ratio, unit: '× plain' },
      { name: `CPU of the gateways a call: ${row}`, value: median(gatewaysUs), unit: 'µs' },
      { name: `CPU of Redis a call: ${row}`, value: median(redisUs), unit: 'µs' },
    );
    if (othersUs.length > 0)
      record({ name: `CPU of a replica for a call of another: ${row}`, value: median(othersUs), unit: 'µs' });
  }
  record(
    { name: `CPU of an idle replica, of ${name}`, value: median(idle.eachUs) / 1000, unit: 'ms a second' },
    { name: `CPU of an idle Redis, of ${name}`, value: median(idle.redisUs) / 1000, unit: 'ms a second' },
  );
}
