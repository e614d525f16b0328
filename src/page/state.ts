/**
 * What the page shows at one instant, as JSON. Owns the selection and the shape; does not own any figure: each is the
 * one that the metrics show, read from the same source.
 */
import type { LaneCalls } from '../activity/shared.ts';
import type { AllActivity } from '../activity/snapshot.ts';
import type {
  LimiterHealth,
  LimiterMode,
  LivePressure,
  ObservedBreaker,
  ObservedBucket,
  ObservedCredential,
  ProcessPressure,
} from '../telemetry/events.ts';
import type { Sample } from './timeline.ts';
import { verdict, type Verdict } from './verdict.policy.ts';

/** What the gateway reports to the page. */
export interface PageSource {
  live(): readonly LivePressure[];
  buckets(): readonly ObservedBucket[];
  breakers(upstream: string): readonly ObservedBreaker[];
  limiterHealth(): LimiterHealth;
  replicas(): Promise<number>;
  activity(windowMs: number): Promise<AllActivity>;
  /** Calls of all replicas to an upstream that wait and are in flight; the others' are a few seconds old. */
  callsTo(upstream: string): Promise<LaneCalls>;
  /** What was counted of all replicas in the running minute and the one before. */
  countsOf(upstream: string): Promise<WholeCounts>;
  credentials(): readonly ObservedCredential[];
  process(): ProcessPressure;
}

/** Counts of all replicas. */
export interface WholeCounts {
  readonly shed: number;
  readonly absorbed: number;
}

/** An upstream as all replicas together see it. */
export interface WholeUpstream extends LaneCalls, WholeCounts {
  readonly name: string;
}

export interface MeterState {
  readonly dimension: string;
  /** Used share of the fullest bucket, 0 to 1. */
  readonly used: number;
  readonly level: number;
  readonly limit: number;
}

export interface UpstreamState {
  readonly name: string;
  readonly waiting: number;
  readonly oldestMs: number;
  readonly inFlight: number;
  readonly closedMs: number;
  /** The status with which the upstream refuses calls for good, and when a probe asks it again; `null` = it does not. */
  readonly refusing: ObservedBreaker | null;
  readonly buckets: number;
  readonly meters: readonly MeterState[];
  /** Time until its credential ends that ends first, milliseconds; `null`: none has an end that is known. */
  readonly credentialEndsInMs: number | null;
  readonly shedLastMinute: number;
  readonly absorbedLastMinute: number;
  readonly throttledLastMinute: number;
}

export interface PageState {
  readonly at: number;
  readonly verdict: Verdict;
  readonly mode: LimiterMode;
  readonly redis: { readonly errorsLastMinute: number; readonly commandMs: number } | null;
  readonly leasesLostLastMinute: number;
  readonly replicas: number;
  readonly upstreams: readonly UpstreamState[];
  /** Refusals of the last quarter of an hour, by code. */
  readonly refusals: Readonly<Record<string, number>>;
  /** Refusals with 429 of the last quarter of an hour, by what held the calls back. */
  readonly heldBy: Readonly<Record<string, number>>;
  /** All replicas together. */
  readonly whole: readonly WholeUpstream[];
  /** The load of the replica that shows the page. */
  readonly process: ProcessPressure;
  readonly sample: Sample;
}

export interface PageNow {
  readonly sample: Sample;
  /** Samples of the last minute and of all time kept. */
  readonly lastMinute: readonly Sample[];
  readonly all: readonly Sample[];
  readonly replicas: number;
  readonly whole: readonly WholeUpstream[];
  /** Health a minute ago, for differences. */
  readonly before: LimiterHealth;
}

export function pageState(source: PageSource, now: PageNow): PageState {
  const health = source.limiterHealth();
  const mode = health.mode ?? 'memory';
  const errors = health.redisErrors - now.before.redisErrors;
  const leasesLost = health.leasesLost - now.before.leasesLost;
  const buckets = source.buckets();
  const process = source.process();
  const upstreams = source.live().map((live) => ({
    ...upstreamState(live, buckets, now.lastMinute),
    refusing: source.breakers(live.upstream)[0] ?? null,
    credentialEndsInMs: firstEnd(source.credentials(), live.upstream),
  }));
  return {
    at: now.sample.at,
    verdict: verdict({
      mode,
      redisErrorsLastMinute: errors,
      leasesLostLastMinute: leasesLost,
      sheddingShare: process.sheddingShare,
      overloadedLastMinute: summed(now.lastMinute.map(({ refusals }) => refusals))['overloaded'] ?? 0,
      upstreams: upstreams.map((each) => ({
        ...each,
        fullest: each.meters.length === 0 ? null : Math.max(...each.meters.map(({ used }) => used)),
        whole: now.replicas < 2 ? null : (now.whole.find(({ name }) => name === each.name) ?? null),
      })),
    }),
    mode,
    redis: health.redisMs === null ? null : { errorsLastMinute: errors, commandMs: health.redisMs },
    leasesLostLastMinute: leasesLost,
    replicas: now.replicas,
    upstreams,
    refusals: summed(now.all.map(({ refusals }) => refusals)),
    heldBy: summed(now.all.map(({ heldBy }) => heldBy)),
    whole: now.whole,
    process,
    sample: now.sample,
  };
}

function upstreamState(
  live: LivePressure,
  buckets: readonly ObservedBucket[],
  lastMinute: readonly Sample[],
): Omit<UpstreamState, 'refusing' | 'credentialEndsInMs'> {
  const own = buckets.filter(({ upstream }) => upstream === live.upstream).map(({ snapshot }) => snapshot);
  const meters = new Map<string, MeterState>(
    live.dimensions.map((dimension) => [dimension, { dimension, used: 0, level: 0, limit: 0 }]),
  );
  for (const { meter, level, limit } of own.flatMap((bucket) => bucket.meters)) {
    const used = limit > 0 ? level / limit : 0;
    const known = meters.get(meter);
    if (known === undefined || known.limit === 0 || used > known.used) {
      meters.set(meter, { dimension: meter, used, level, limit });
    }
  }
  const inMinute = (field: 'shed' | 'absorbed' | 'throttled'): number =>
    lastMinute.reduce((sum, sample) => sum + (sample.upstreams[live.upstream]?.[field] ?? 0), 0);
  return {
    name: live.upstream,
    waiting: live.waiting,
    oldestMs: Math.round(live.oldestMs),
    inFlight: live.inFlight,
    closedMs: Math.round(own.reduce((most, { closedMs }) => Math.max(most, closedMs), 0)),
    buckets: own.length,
    // A meter nobody has stated or reported has no limit to be near to.
    meters: [...meters.values()].filter(({ limit }) => limit > 0),
    shedLastMinute: inMinute('shed'),
    absorbedLastMinute: inMinute('absorbed'),
    throttledLastMinute: inMinute('throttled'),
  };
}

function firstEnd(credentials: readonly ObservedCredential[], upstream: string): number | null {
  const ends = credentials.filter((each) => each.upstream === upstream).map(({ expiresInMs }) => expiresInMs);
  return ends.length === 0 ? null : Math.min(...ends);
}

function summed(counts: readonly Readonly<Record<string, number>>[]): Record<string, number> {
  const total: Record<string, number> = {};
  for (const each of counts)
    for (const [name, n] of Object.entries(each)) total[name] = (total[name] ?? 0) + n;
  return total;
}
