/**
 * Two levels below the bucket, at one replica with the limiter of its process and over three replicas: a loop among nine people of one
 * workspace, and background calls beside bursts of others and beside others that never stop. The bucket keeps no room for later, so that a
 * call waits for those before it and for nothing else.
 */
import type { LogEntry } from '../../simulators/log.ts';
import { jainOf } from '../../test/support/jain.ts';
import { count, fleetConfig, ordersPath, pause, type CallResponse } from '../../test/support/redis-fleet.ts';
import { answeredFrom, atOnce, crowdOf, now, p95Of, type Kind } from './crowd.ts';
import { startFleet, type Fleet } from './fleet.ts';
import { startServer, startSimulator, stopServer, type Simulator } from './processes.ts';
import { allSucceeded, noneLost, summary, type Row, type Scenario } from './row.ts';

/** So slow that what a grant is late by is little of it. */
const perSecond = 4;
const serviceMs = 1_000 / perSecond;

interface PacedWorld {
  readonly fleet: Fleet;
  readonly simulator: Simulator;
  end(): Promise<void>;
}

/** @param workspace YAML line of the workspace */
async function pacedWorld(replicas: number, workspace: string): Promise<PacedWorld> {
  const redis = replicas === 1 ? null : await startServer();
  const simulator = await startSimulator('commerce', {
    // At once: a response that states a level of some milliseconds ago would take that much room from a bucket of one call.
    latency: { minMs: 0, maxMs: 0 },
    stores: {
      '127.0.0.1': { plan: { limit: 20 * perSecond, leak: perSecond }, apps: { 'app-sim': ['shpat_sim'] } },
    },
  });
  const config = fleetConfig({
    ...(redis === null ? {} : { redis: `url: "${redis.url}"` }),
    shopUrl: simulator.url,
    shopLimits: `requestsPerMinute: none, maxInFlight: none, capacity: 1, leakPerSecond: ${perSecond}, learn: false`,
    workspace,
  });
  const fleet = await startFleet(replicas, config);
  return {
    fleet,
    simulator,
    async end() {
      await fleet.stop();
      simulator.stop();
      if (redis !== null) await stopServer(redis);
    },
  };
}

const kindOf = ({ fleet }: PacedWorld, name: string, headers: Kind['headers'] = {}): Kind => ({
  path: ordersPath,
  key: fleet.keys['acme'] ?? '',
  name,
  headers: { prefer: 'wait=600', ...headers },
});

/** Calls that the upstream served between two instants of the wall clock. */
const servedBetween = (entries: readonly LogEntry[], from: number, until: number): readonly LogEntry[] =>
  entries.filter(({ decision, at }) => decision === 'admitted' && at >= from && at < until);

/** Processes that have just started compile for a second or two. */
const warmMs = 5_000;

const people = 9;
const loopCalls = 20;
const turnsMs = 60_000;
/** Each has a tenth of the places, and waits for the others' turns. */
const fairShareMs = (people + 1) * serviceMs;
const maxPersonMs = 1.25 * fairShareMs + 150;
const minJain = 0.97;

const loopAmongPeople = (where: string, replicas: number): Scenario => ({
  name: `a loop of ${loopCalls} calls among ${people} people, ${where}`,
  async run(): Promise<Row> {
    const world = await pacedWorld(replicas, '    callers: { by: "header:x-agent" }');
    const callerOf = (name: string) => kindOf(world, name, { 'x-agent': name });
    const loop = crowdOf(world.fleet, callerOf('loop'), loopCalls);
    const each = Array.from({ length: people }, (_, n) => crowdOf(world.fleet, callerOf(`person${n}`), 1));
    await pause(warmMs);
    const [fromMs, fromAt] = [now(), Date.now()];
    await pause(turnsMs);
    const untilAt = Date.now();
    const ended = await Promise.all([...each, loop].map((crowd) => crowd.end()));
    const entries = await world.simulator.log();
    await world.end();
    const served = servedBetween(entries, fromAt, untilAt);
    const shares = [...Array.from({ length: people }, (_, n) => `person${n}-`), 'loop-'].map(
      (name) => served.filter(({ nonce }) => nonce.startsWith(name)).length,
    );
    const jain = jainOf(shares);
    const waits = ended.slice(0, people).map((responses) => p95Of(answeredFrom(responses, fromMs)));
    const worst = Math.max(...waits);
    const all = ended.flat();
    const used = served.length / (((untilAt - fromAt) / 1_000) * perSecond);
    return {
      holds: noneLost(all),
      holdsWhenQuiet:
        allSucceeded(all) && count(entries, 'throttled') === 0 && worst <= maxPersonMs && jain >= minJain,
      figures: `p95 of each person ${Math.min(...waits).toFixed(0)} to ${worst.toFixed(0)} ms (fair share ${fairShareMs} ms, at most ${maxPersonMs} ms); Jain's index of the ten ${jain.toFixed(4)} (${shares.join(', ')} calls); utilisation ${used.toFixed(3)}; ${summary(all)}; upstream 429s ${count(entries, 'throttled')}`,
      measured: [{ name: 'p95 of a person', value: worst / fairShareMs, unit: '× fair share' }],
    };
  },
});

const burstOf = 12;
const burstEveryMs = 6_000;
const bursts = 8;
const backgroundCalls = 20;
const saturatedMs = 122_000;
const minUtilisation = 0.98;

async function foregroundBursts(world: PacedWorld, name: string): Promise<readonly CallResponse[]> {
  const all: CallResponse[] = [];
  for (let n = 0; n < bursts; n += 1) {
    const startedAt = now();
    all.push(...(await atOnce(world.fleet, kindOf(world, `${name}${n}`), burstOf)));
    await pause(Math.max(0, startedAt + burstEveryMs - now()));
  }
  return all;
}

const backgroundBeside = (where: string, replicas: number): Scenario => ({
  name: `background beside bursts of ${burstOf} calls, and beside others that never stop, ${where}`,
  async run(): Promise<Row> {
    const world = await pacedWorld(replicas, '    weight: 1');
    await atOnce(world.fleet, kindOf(world, 'warm'), burstOf);
    const without = await foregroundBursts(world, 'without');
    const background = crowdOf(world.fleet, kindOf(world, 'back', { priority: 'u=7' }), backgroundCalls);
    await pause(1_000);
    const burstsFrom = Date.now();
    const beside = await foregroundBursts(world, 'beside');
    const burstsUntil = Date.now();
    const others = crowdOf(world.fleet, kindOf(world, 'others'), backgroundCalls);
    await pause(1_000);
    const saturatedFrom = Date.now();
    await pause(saturatedMs);
    const saturatedUntil = Date.now();
    const all = [...without, ...beside, ...(await others.end()), ...(await background.end())];
    const entries = await world.simulator.log();
    await world.end();
    const during = servedBetween(entries, burstsFrom, burstsUntil);
    const utilisation = during.length / (((burstsUntil - burstsFrom) / 1_000) * perSecond);
    const leftAt = servedBetween(entries, saturatedFrom, saturatedUntil)
      .filter(({ nonce }) => nonce.startsWith('back-'))
      .map(({ at }) => at);
    const gaps = [saturatedFrom, ...leftAt].map((at, n) => (leftAt[n] ?? saturatedUntil) - at);
    const [p95Without, p95Beside] = [p95Of(without), p95Of(beside)];
    const longestGapMs = Math.max(...gaps);
    return {
      holds: noneLost(all),
      holdsWhenQuiet:
        allSucceeded(all) &&
        count(entries, 'throttled') === 0 &&
        p95Beside <= p95Without + serviceMs &&
        utilisation >= minUtilisation &&
        longestGapMs <= 60_000 + 2 * serviceMs &&
        leftAt.length <= Math.ceil(saturatedMs / 60_000),
      figures: `p95 of the bursts ${p95Without.toFixed(0)} ms without and ${p95Beside.toFixed(0)} ms beside the background (service time ${serviceMs} ms); utilisation ${utilisation.toFixed(3)}; beside others that never stop ${leftAt.length} left in ${saturatedMs / 1_000} s, at most ${(longestGapMs / 1_000).toFixed(2)} s apart; ${summary(all)}; upstream 429s ${count(entries, 'throttled')}`,
      measured: [
        { name: 'p95 of bursts', value: p95Beside / p95Without, unit: '× without background' },
        { name: 'unused room', value: 1 - utilisation, unit: '× of all' },
      ],
    };
  },
});

export const levels: readonly Scenario[] = [
  ['one replica', 1] as const,
  ['three replicas', 3] as const,
].flatMap(([where, replicas]) => [loopAmongPeople(where, replicas), backgroundBeside(where, replicas)]);
