/**
 * What the page shows at one instant, as JSON. Owns the selection and the shape; refuses to own any figure: each is the
 * one that the metrics show, read from the same source.
 */
import type { AllActivity } from '../activity/snapshot.ts';
import type {
  LimiterHealth,
  LimiterMode,
  LivePressure,
  ObservedBreaker,
  ObservedBucket,
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
  /** It refuses calls for good: its status, and when it is asked again. */
  readonly refusing: ObservedBreaker | null;
  readonly buckets: number;
  readonly meters: readonly MeterState[];
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
  readonly sample: Sample;
}

export interface PageNow {
  readonly sample: Sample;
  /** Samples of the last minute and of all time kept. */
  readonly lastMinute: readonly Sample[];
  readonly all: readonly Sample[];
  readonly replicas: number;
  /** Health a minute ago, for differences. */
  readonly before: LimiterHealth;
}

export function pageState(source: PageSource, now: PageNow): PageState {
  const health = source.limiterHealth();
  const mode = health.mode ?? 'memory';
  const errors = health.redisErrors - now.before.redisErrors;
  const leasesLost = health.leasesLost - now.before.leasesLost;
  const buckets = source.buckets();
  const upstreams = source.live().map((live) => ({
    ...upstreamState(live, buckets, now.lastMinute),
    refusing: source.breakers(live.upstream)[0] ?? null,
  }));
  return {
    at: now.sample.at,
    verdict: verdict({
      mode,
      redisErrorsLastMinute: errors,
      leasesLostLastMinute: leasesLost,
      upstreams: upstreams.map((each) => ({
        ...each,
        fullest: each.meters.reduce((most, { used }) => Math.max(most, used), 0),
      })),
    }),
    mode,
    redis: health.redisMs === null ? null : { errorsLastMinute: errors, commandMs: health.redisMs },
    leasesLostLastMinute: leasesLost,
    replicas: now.replicas,
    upstreams,
    refusals: sumRefusals(now.all),
    sample: now.sample,
  };
}

function upstreamState(
  live: LivePressure,
  buckets: readonly ObservedBucket[],
  lastMinute: readonly Sample[],
): Omit<UpstreamState, 'refusing'> {
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

function sumRefusals(samples: readonly Sample[]): Record<string, number> {
  const total: Record<string, number> = {};
  for (const { refusals } of samples) {
    for (const [code, n] of Object.entries(refusals)) total[code] = (total[code] ?? 0) + n;
  }
  return total;
}
