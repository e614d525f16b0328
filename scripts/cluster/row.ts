/**
 * A row of the verification: a load in a world of replicas and a simulated provider, what is seen of it, and how it is judged, by
 * what the machine did meanwhile.
 */
import type { LogEntry } from '../../simulators/log.ts';
import {
  chatBody,
  chatPath,
  count,
  fleetConfig,
  makespan,
  type CallResponse,
  type FleetOptions,
} from '../../test/support/redis-fleet.ts';
import { startFleet, type Fleet } from '../fleet/gateways.ts';
import { drive, twice, type Load } from '../fleet/load.ts';
import { startServer, stopServer } from '../fleet/redis.ts';
import { startSimulator, type Simulator } from '../fleet/simulators.ts';
import { stalls } from '../fleet/stalls.ts';
import type { Figure } from '../nightly/figures.ts';
import { tally } from '../report.ts';

/** What one run found. */
export interface Found {
  /** Everything was kept that holds on any machine, however busy. */
  readonly holds: boolean;
  /** What a machine that does not let everybody run may break was kept, too: times, order, no refusal by anybody. */
  readonly holdsWhenQuiet: boolean;
  /** In words, for people. */
  readonly words: string;
  /** The nightly run compares them with those of before. */
  readonly measured: readonly Figure[];
}

export interface World {
  readonly fleet: Fleet;
  readonly simulator: Simulator;
  /** API keys by workspace. */
  readonly keys: Readonly<Record<string, string>>;
  end(): Promise<void>;
}

export interface Seen {
  readonly responses: readonly CallResponse[];
  /** The upstream's log of this load. */
  readonly entries: readonly LogEntry[];
  /** Refusals of the upstream, which clients do not see. */
  readonly throttled: number;
  readonly tookMs: number;
  /** Longest time for which this process, one with nothing to do, or a replica was kept from running. Milliseconds. */
  readonly stalledMs: number;
}

export interface Row {
  readonly name: string;
  readonly world: () => Promise<World>;
  readonly load: (world: World) => Omit<Load, 'to'>;
  /** How long the upstream's own limits make the load take at best, from its first to its last call. Milliseconds. */
  readonly bestMs: number;
  /** A longer makespan is too long: a multiple of the best. */
  readonly atBest: number;
  /** Runs beside the load. */
  readonly beside?: (world: World) => { end(): void | Promise<void> };
  /** What else is judged. */
  readonly also?: (seen: Seen, world: World) => Partial<Found> & { readonly words: string };
}

/** A workspace that no ceiling of its own holds. */
export const wide = 'requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000';
/** A model beside those that are judged: processes that have just started compile for a second. */
export const warmingModel = 'gpt-4o-mini';

/** Three replicas that are warm, over a Redis of their own, and a simulated provider. */
export async function startWorld(
  kind: 'language-model' | 'commerce',
  config: Readonly<Record<string, unknown>>,
  given: {
    readonly limits: string;
    /** Address of the Redis that listens on this port. */
    readonly redisUrl?: ((port: number) => Promise<string>) | undefined;
  },
): Promise<World> {
  const { limits, redisUrl } = given;
  const simulator = await startSimulator(kind, config);
  const warming = await startSimulator('language-model', {
    models: { [warmingModel]: { rpm: 100_000, tpm: 100_000_000 } },
    latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
  });
  const isModel = kind === 'language-model';
  const redis = await startServer();
  const url = (await redisUrl?.(redis.port)) ?? redis.url;
  const fleetOptions: FleetOptions = {
    workspaces: ['acme', 'warm'],
    redis: `url: "${url}"`,
    modelUrl: isModel ? simulator.url : warming.url,
    modelLimits: isModel ? limits : wide,
    ...(isModel ? {} : { shopUrl: simulator.url, shopLimits: limits }),
  };
  const { keys, yaml } = fleetConfig(fleetOptions);
  const fleet = await startFleet(3, yaml());
  await drive({
    to: fleet.gateways,
    calls: 150,
    everyMs: 10,
    path: chatPath,
    key: keys['warm'] ?? '',
    body: () => ({ ...chatBody, model: warmingModel }),
    waitSeconds: 60,
  });
  await simulator.forget();
  return {
    fleet,
    simulator,
    keys,
    async end() {
      await fleet.stop();
      for (const one of [simulator, warming]) one.stop();
      await stopServer(redis);
    },
  };
}

/** A model that allows so many requests a minute. */
export const chatModel = (rpm: number) => ({
  models: { 'gpt-4o': { rpm, tpm: 100_000_000 }, [warmingModel]: { rpm: 100_000, tpm: 100_000_000 } },
  latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
});

/** Every call was answered, by the upstream or with a refusal: a broken connection is status 0. */
const noneLost = (responses: readonly CallResponse[]): boolean =>
  responses.every(({ status }) => status !== 0);
const allSucceeded = (responses: readonly CallResponse[]): boolean =>
  responses.every(({ status }) => status >= 200 && status < 300);

async function run(row: Row): Promise<Found> {
  const world = await row.world();
  const { fleet, simulator } = world;
  const since = stalls.mark();
  await fleet.lagMs();
  const beside = row.beside?.(world);
  const responses = await drive({ ...row.load(world), to: fleet.gateways });
  await beside?.end();
  const stalledMs = Math.max(stalls.longestSince(since), await fleet.lagMs());
  const entries = await simulator.log();
  const throttled = count(entries, 'throttled');
  const seen: Seen = { responses, entries, throttled, tookMs: makespan(entries), stalledMs };
  const doubled = twice(entries);
  const ratio = seen.tookMs / row.bestMs;
  const also: Partial<Found> & { words: string } = row.also?.(seen, world) ?? { words: '' };
  const errors = await fleet.metric('sluice_redis_errors_total');
  await world.end();
  const statuses = tally(responses.map(({ status, code }) => `${status} ${code}`.trim()));
  return {
    holds: noneLost(responses) && doubled === 0 && also.holds !== false,
    holdsWhenQuiet:
      allSucceeded(responses) && throttled === 0 && ratio <= row.atBest && also.holdsWhenQuiet !== false,
    words: [
      `makespan ${(seen.tookMs / 1_000).toFixed(2)} s = ${ratio.toFixed(3)} × optimum`,
      ...(also.words === '' ? [] : [also.words]),
      `${responses.length} calls: ${statuses}`,
      `upstream 429s ${throttled}; twice ${doubled}; failed commands ${errors}; longest stall ${stalledMs.toFixed(0)} ms`,
    ].join('; '),
    measured: [{ name: 'makespan', value: ratio, unit: '× optimum' }, ...(also.measured ?? [])],
  };
}

export interface Verdict extends Pick<Found, 'words' | 'measured'> {
  readonly result: 'passed' | 'failed' | 'skipped';
}

/** Times and order that are missed on a machine which did not let everybody run are not judged; everything else is. */
export async function judge(row: Row): Promise<Verdict> {
  const since = stalls.mark();
  const { holds, holdsWhenQuiet, words, measured } = await run(row).catch((failure: unknown): Found => {
    const said = failure instanceof Error ? failure.message.replaceAll('\n', ' ') : String(failure);
    return { holds: false, holdsWhenQuiet: false, words: said, measured: [] };
  });
  const excuse = stalls.excuseSince(since);
  const result = holds && holdsWhenQuiet ? 'passed' : holds && excuse !== null ? 'skipped' : 'failed';
  return { result, measured, words: excuse === null ? words : `${words}; ${excuse}` };
}
