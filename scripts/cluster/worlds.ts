/**
 * The worlds that scenarios happen in (three replicas, one simulator), and what is seen of a load in one of them.
 *
 * Owns: warming, the readings. Does not own: what must hold (each scenario says so).
 */
import type { LogEntry } from '../../simulators/log.ts';
import {
  chatBody,
  chatPath,
  count,
  fleetConfig,
  makespan,
  overtaken,
  type CallResponse,
  type FleetOptions,
} from '../../test/support/redis-fleet.ts';
import { startFleet, type Fleet } from './fleet.ts';
import { drive, twice, type Load } from './load.ts';
import { startServer, startSimulator, stopServer, type Simulator } from './processes.ts';
import { summary } from './row.ts';
import { stalls } from './stalls.ts';

/** Calls sent this far apart have an order; closer ones may cross on the wire. Milliseconds. */
const apartMs = 50;
/** A workspace that no ceiling of its own holds. */
export const wide = 'requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000';
const fast = { baseMs: 20, perTokenMs: 0, jitter: 0 };
/** The model that calls of {@link warm} ask for. */
export const warming = 'gpt-4o-mini';

export interface World {
  readonly fleet: Fleet;
  /** The upstream that is loaded and judged. */
  readonly simulator: Simulator;
  readonly end: () => Promise<void>;
}

/** `redis`: YAML of that section. `rpm`: the chat bucket. `limits`: the workspace's own. */
export async function chatWorld(redis: string, rpm: number, limits = wide): Promise<World> {
  const simulator = await startModel(rpm);
  const options = { redis, modelUrl: simulator.url, modelLimits: limits, workspaces: ['acme', 'warm'] };
  const fleet = await startFleet(3, fleetConfig(options));
  await warm(fleet);
  await simulator.forget();
  return { fleet, simulator, end: () => endAll(fleet, simulator) };
}

/** A store of 40 calls at 2/s whose responses take `latencyMs`; one call in flight per workspace. */
export async function shopWorld(redis: string, latencyMs: number): Promise<World> {
  const model = await startModel(100_000);
  const simulator = await startSimulator('commerce', {
    latency: { minMs: latencyMs, maxMs: latencyMs },
    stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
  });
  const fleet = await startFleet(
    3,
    fleetConfig({
      redis,
      modelUrl: model.url,
      modelLimits: wide,
      shopUrl: simulator.url,
      shopLimits: 'requestsPerMinute: 1000',
      workspaces: ['acme', 'warm'],
    }),
  );
  await warm(fleet);
  return { fleet, simulator, end: () => endAll(fleet, simulator, model) };
}

const startModel = (rpm: number): Promise<Simulator> =>
  startSimulator('language-model', {
    models: { 'gpt-4o': { rpm, tpm: 100_000_000 }, [warming]: { rpm: 100_000, tpm: 100_000_000 } },
    latency: fast,
  });

/** Processes that have just started compile for a second: they get calls of another model, in another bucket. */
export async function warm(fleet: Fleet): Promise<void> {
  const body = { ...chatBody, model: warming };
  const key = fleet.keys['warm'] ?? '';
  await drive({ to: fleet.gateways, calls: 150, everyMs: 10, path: chatPath, key, body });
}

/** Three replicas over a Redis of their own. */
export async function overRedis(options: Omit<FleetOptions, 'redis'>): Promise<{
  readonly fleet: Fleet;
  /** Ends the replicas, their Redis and these simulators. */
  end(...simulators: readonly Simulator[]): Promise<void>;
}> {
  const redis = await startServer();
  const fleet = await startFleet(3, fleetConfig({ ...options, redis: `url: "${redis.url}"` }));
  return {
    fleet,
    async end(...simulators) {
      await endAll(fleet, ...simulators);
      await stopServer(redis);
    },
  };
}

async function endAll(fleet: Fleet, ...simulators: readonly Simulator[]): Promise<void> {
  await fleet.stop();
  for (const simulator of simulators) simulator.stop();
}

/** A chat load of the workspace, round robin, each call waiting up to `waitSeconds`. */
export const chat = (
  { fleet }: Pick<World, 'fleet'>,
  waitSeconds: number,
): Omit<Load, 'calls' | 'everyMs'> => ({
  to: fleet.gateways,
  path: chatPath,
  key: fleet.keys['acme'] ?? '',
  body: chatBody,
  headers: wait(waitSeconds),
});

export const wait = (waitSeconds: number) => ({ prefer: `wait=${waitSeconds}` });

export interface Seen {
  readonly responses: readonly CallResponse[];
  /** The upstream's log of this load. */
  readonly entries: readonly LogEntry[];
  /** Refusals of the upstream, which clients do not see. */
  readonly throttled: number;
  /** Calls that left behind others that had arrived clearly later, of those `ordered` keeps. */
  readonly crossed: number;
  /** Nonces executed more than once. */
  readonly twice: number;
  readonly tookMs: number;
  /** Longest time for which a process with nothing to do was kept from running, the client, and any replica. */
  readonly stalledMs: number;
  readonly clientStalledMs: number;
  readonly replicaStalledMs: number;
  readonly words: string;
}

export interface Sight {
  /** Which entries, in order of arrival upstream, the judgement of order is about; all by default. */
  readonly ordered?: (entries: readonly LogEntry[]) => readonly LogEntry[];
  /** Only what was sent with this credential counts. */
  readonly by?: string;
}

/** Drives and reads. */
export async function see(
  { fleet, simulator }: Pick<World, 'fleet' | 'simulator'>,
  load: Load,
  { ordered = (entries) => entries, by }: Sight = {},
): Promise<Seen> {
  await lag(fleet);
  const since = stalls.mark();
  const [responses, idleShare] = await Promise.all([
    drive(load),
    stalls.idleShareOver(load.calls * (load.everyMs ?? 0)),
  ]);
  const stalledMs = stalls.maxSince(since);
  const clientStalledMs = stalls.clientSince(since);
  const replicaStalledMs = await lag(fleet);
  const entries = (await simulator.log()).filter(({ key }) => by === undefined || key === by);
  const inOrder = [...entries].sort((a, b) => a.arrivedT - b.arrivedT);
  // A call arrives when its replica reads it, after its client could write it: calls that others could overtake on that
  // way have no order.
  const spacingMs = apartMs + clientStalledMs + replicaStalledMs;
  const crossed = overtaken(responses, ordered(inOrder), spacingMs);
  const throttled = count(entries, 'throttled');
  const doubled = twice(entries);
  const tookMs = makespan(entries);
  return {
    responses,
    entries,
    throttled,
    crossed,
    twice: doubled,
    tookMs,
    stalledMs,
    clientStalledMs,
    replicaStalledMs,
    words: `${summary(responses)}; upstream 429s ${throttled}; twice ${doubled}; overtaken ${crossed} (by more than ${spacingMs.toFixed(0)} ms); longest stall ${stalledMs.toFixed(0)} ms, of the client ${clientStalledMs.toFixed(0)} ms, of a replica ${replicaStalledMs.toFixed(0)} ms; processors idle ${(100 * idleShare).toFixed(0)} % while calls were sent`,
  };
}

/** Longest delay of each replica's event loop since the last reading, milliseconds. */
export async function replicaLags(fleet: Fleet): Promise<readonly number[]> {
  return (await fleet.metrics('nodejs_eventloop_lag_max_seconds')).map((lagSeconds) => 1000 * lagSeconds);
}

const lag = async (fleet: Fleet): Promise<number> => Math.max(0, ...(await replicaLags(fleet)));

/** What a fault of Redis did to the replicas, as a sentence. */
export async function aftermath(world: Pick<World, 'fleet'>): Promise<string> {
  const errors = await world.fleet.metric('sluice_redis_errors_total');
  const away = world.fleet.gateways.filter(({ lines }) =>
    lines.some((line) => line.includes('Redis is away')),
  );
  return `replicas that went away from Redis ${away.length}; failed commands ${errors}`;
}
