/**
 * A row of the verification: a load over three replicas and a simulated provider, what is seen of it, and how it is judged, by
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
} from '../../test/support/redis-fleet.ts';
import { startFleet, type Fleet } from '../fleet/gateways.ts';
import { drive, twice, type Load } from '../fleet/load.ts';
import { startServer, stopServer } from '../fleet/redis.ts';
import { startSimulator } from '../fleet/simulators.ts';
import { stalls } from '../fleet/stalls.ts';
import type { Figure } from '../nightly/figures.ts';
import { tally } from '../report.ts';

/** What one run found. */
interface Found {
  /** Everything was kept that holds on any machine, however busy. */
  readonly holds: boolean;
  /** What a machine that does not let everybody run may break was kept, too: times, order, no refusal by anybody. */
  readonly holdsWhenQuiet: boolean;
  /** In words, for people. */
  readonly words: string;
  /** The nightly run compares them with those of before. */
  readonly measured: readonly Figure[];
}

export interface Seen {
  readonly responses: readonly CallResponse[];
  /** The upstream's log of this load. */
  readonly entries: readonly LogEntry[];
  /** Longest time for which this process, one with nothing to do, or a replica was kept from running. Milliseconds. */
  readonly stalledMs: number;
}

export interface Row {
  readonly name: string;
  /** Whose provider is judged. */
  readonly upstream: 'language-model' | 'commerce';
  readonly load: Omit<Load, 'to' | 'key' | 'waitSeconds'>;
  /** How long the upstream's own limits make the load take at best, from its first to its last call. Milliseconds. */
  readonly bestMs: number;
  /** Runs beside the load. */
  readonly beside?: (fleet: Fleet) => { end(): Promise<void> };
  /** What else is judged. */
  readonly also: (seen: Seen) => Partial<Found> & { readonly words: string };
}

/** A longer makespan is too long: a multiple of the best. */
const atBest = 1.02;
/** Requests that the judged model takes in a minute. */
export const perMinute = 600;
/** A workspace that no ceiling of its own holds. */
const wide = 'requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000';
/** A model beside the one that is judged: processes that have just started compile for a second. */
const warming = 'gpt-4o-mini';
const model = {
  models: { 'gpt-4o': { rpm: perMinute, tpm: 100_000_000 }, [warming]: { rpm: 100_000, tpm: 100_000_000 } },
  latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
};
const store = {
  latency: { minMs: 100, maxMs: 100 },
  stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
};

async function run(row: Row): Promise<Found> {
  const simulators = {
    'language-model': await startSimulator('language-model', model),
    commerce: await startSimulator('commerce', store),
  };
  const redis = await startServer();
  const { keys, yaml } = fleetConfig({
    workspaces: ['acme', 'warm'],
    redis: `url: "${redis.url}"`,
    modelUrl: simulators['language-model'].url,
    modelLimits: wide,
    shopUrl: simulators.commerce.url,
    shopLimits: 'requestsPerMinute: 1000',
  });
  const fleet = await startFleet(3, yaml());
  const to = { to: fleet.gateways, waitSeconds: 60 };
  const warm = { path: chatPath, key: keys['warm'] ?? '', body: () => ({ ...chatBody, model: warming }) };
  await drive({ ...to, ...warm, calls: 150, everyMs: 10 });
  const simulator = simulators[row.upstream];
  await simulator.forget();
  const since = stalls.mark();
  await fleet.lagMs();
  const beside = row.beside?.(fleet);
  const responses = await drive({ ...row.load, ...to, key: keys['acme'] ?? '' });
  await beside?.end();
  const stalledMs = Math.max(stalls.longestSince(since), await fleet.lagMs());
  const entries = await simulator.log();
  const [throttled, doubled, tookMs] = [count(entries, 'throttled'), twice(entries), makespan(entries)];
  const ratio = tookMs / row.bestMs;
  const also: ReturnType<Row['also']> = row.also({ responses, entries, stalledMs });
  const errors = await fleet.metric('sluice_redis_errors_total');
  await fleet.stop();
  for (const one of Object.values(simulators)) one.stop();
  await stopServer(redis);
  const statuses = tally(responses.map(({ status, code }) => `${status} ${code}`.trim()));
  const all200 = responses.every(({ status }) => status === 200);
  const isQuick = all200 && throttled === 0 && ratio <= atBest;
  return {
    // A connection that broke without a refusal is status 0.
    holds: responses.every(({ status }) => status !== 0) && doubled === 0 && also.holds !== false,
    holdsWhenQuiet: isQuick && also.holdsWhenQuiet !== false,
    words: `makespan ${(tookMs / 1_000).toFixed(2)} s = ${ratio.toFixed(3)} × optimum; ${also.words}; ${responses.length} calls: ${statuses}; upstream 429s ${throttled}; twice ${doubled}; failed commands ${errors}; longest stall ${stalledMs.toFixed(0)} ms`,
    measured: [{ name: 'makespan', value: ratio, unit: '× optimum' }, ...(also.measured ?? [])],
  };
}

/** Times and order that are missed on a machine which did not let everybody run are not judged; everything else is. */
export async function judge(row: Row) {
  const since = stalls.mark();
  const { holds, holdsWhenQuiet, words, measured } = await run(row).catch((failure: unknown): Found => {
    const said = String(failure).replaceAll('\n', ' ');
    return { holds: false, holdsWhenQuiet: false, words: said, measured: [] };
  });
  const excuse = stalls.excuseSince(since);
  const result = holds && holdsWhenQuiet ? 'passed' : holds && excuse !== null ? 'skipped' : 'failed';
  return { result, measured, words: excuse === null ? words : `${words}; ${excuse}` } as const;
}
