/**
 * What the gateway shows of its own state to pages and gauges: ceilings and buckets, with the upstreams they belong to.
 *
 * Owns: which bucket belongs to which upstream and ceiling, as the lanes of the latest calls name them. Does not own: how that is
 * shown.
 */
import { maxShownCallers, type CeilingsNow, type InForce } from '../activity/shape.ts';
import type { AdmissionQueue } from '../admission/admission.ts';
import type { LaneView } from '../admission/lanes.ts';
import type { Clock } from '../clock.ts';
import { type CeilingRef, type CeilingState, ceilingWindowMs } from '../limiter/policy/ceiling.policy.ts';
import type { CallerKey, CeilingKey } from '../ids.ts';
import type { Ceilings } from '../limiter/ceiling-store.ts';
import type { BucketSnapshot, CallerNow } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import type { ObservedBucket, ObservedCeiling } from '../telemetry/events.ts';

export const noCeilings: CeilingsNow = {
  perMinute: null,
  perDay: null,
  nextSlotMs: null,
  maxInFlightTotal: null,
  reserved: 0,
  callers: [],
  refusing: null,
};

export function createPressure(parts: {
  readonly clock: Clock;
  readonly limiter: Pick<Limiter, 'callers' | 'reserved' | 'snapshot' | 'statesLimit'>;
  readonly ceilings: Ceilings;
  readonly admission: Pick<AdmissionQueue, 'lanes' | 'waitingUnder'>;
}) {
  const { clock, limiter, ceilings, admission } = parts;
  const lanesUnder = readSeldom(clock, () => Map.groupBy(admission.lanes(), ({ ceiling }) => ceiling));
  const bucketByKey = readSeldom(clock, () => new Map(limiter.snapshot().map((each) => [each.bucket, each])));
  const lanesOf = (upstream: string): readonly LaneView[] =>
    [...admission.lanes()].filter((lane) => lane.upstream === upstream);
  /** Used shares of a lane's ceiling, by its latest call. */
  const usedOf = ({ ceilingUse }: LaneView) => {
    const isRecent = ceilingUse !== null && ceilingUse.at >= clock.monotonic() - ceilingWindowMs;
    return { minute: isRecent ? (ceilingUse.minute ?? 0) : 0, day: ceilingUse?.day ?? 0 };
  };
  const callersUnder = (key: CeilingKey): readonly CallerNow[] => {
    const callers = new Map<CallerKey, CallerNow>();
    for (const lane of lanesUnder().get(key) ?? []) {
      for (const now of limiter.callers(lane.bucket, lane.key)) {
        const { waiting, inFlight } = callers.get(now.caller) ?? { waiting: 0, inFlight: 0 };
        const sum = { waiting: waiting + now.waiting, inFlight: inFlight + now.inFlight };
        callers.set(now.caller, { caller: now.caller, ...sum });
      }
    }
    const callsOf = ({ waiting, inFlight }: CallerNow): number => waiting + inFlight;
    return [...callers.values()].sort((a, b) => callsOf(b) - callsOf(a)).slice(0, maxShownCallers);
  };
  return {
    /** State of one ceiling, now. */
    async ceilings(ceiling: CeilingRef): Promise<Omit<CeilingsNow, 'refusing'>> {
      const [perMinute, perDay] = await Promise.all([ceilings.state(ceiling), ceilings.dayState(ceiling)]);
      const [hold] = await ceilings.forecast(ceiling, [admission.waitingUnder(ceiling.key) + 1]);
      // A workspace that uses several buckets (models, shops) is answered for the one used last.
      const [last] = (lanesUnder().get(ceiling.key) ?? []).toSorted((a, b) => b.usedAt - a.usedAt);
      const bucket = last === undefined ? null : (bucketByKey().get(last.bucket) ?? null);
      return {
        perMinute: shown(perMinute),
        perDay: shown(perDay),
        nextSlotMs: nextSlotMs(hold?.waitMs ?? null, bucket),
        maxInFlightTotal: bucket?.maxInFlightTotal ?? null,
        reserved: limiter.reserved(ceiling.key),
        callers: callersUnder(ceiling.key),
      };
    },
    /** Whether every bucket that calls under this ceiling used here has stated limits, to which a default ceiling yields. */
    hasYielded(key: CeilingKey): boolean {
      const lanes = [...admission.lanes()].filter(({ ceiling }) => ceiling === key);
      return lanes.length > 0 && lanes.every(({ bucket }) => limiter.statesLimit(bucket));
    },
    /** Buckets that calls to this upstream named. */
    bucketsOf: (upstream: string) => [...new Set(lanesOf(upstream).map(({ bucket }) => bucket))],
    /** How full the ceilings were that this replica's calls met, by their latest calls. */
    ceilingsUsed(): readonly ObservedCeiling[] {
      return Array.from(admission.lanes(), (lane) => ({ upstream: lane.upstream, ...usedOf(lane) }));
    },
    /** The limits that hold calls to this upstream, as this replica's calls met them. */
    inForce(upstream: string): Pick<InForce, 'lanes' | 'buckets'> {
      const own = lanesOf(upstream);
      const used = new Set(own.map(({ bucket }) => bucket));
      const now = clock.monotonic();
      return {
        buckets: limiter.snapshot().filter(({ bucket }) => used.has(bucket)),
        lanes: own.map((lane) => {
          const { latest, bucket } = lane;
          const { yielded, ceiling } = latest;
          const holds = yielded !== null && limiter.statesLimit(bucket) ? yielded : ceiling;
          return {
            workspaceId: latest.workspaceId,
            bucket,
            calls: lane.enteredUntil(now),
            weight: latest.admission.weight,
            maxInFlight: latest.admission.maxInFlight,
            perMinute: holds.perMinute,
            perDay: holds.perDay,
            used: usedOf(lane),
          };
        }),
      };
    },
    /** Buckets touched by this replica. */
    buckets(): readonly ObservedBucket[] {
      const upstreamOf = new Map(Array.from(admission.lanes(), ({ bucket, upstream }) => [bucket, upstream]));
      return limiter
        .snapshot()
        .map((each) => ({ upstream: upstreamOf.get(each.bucket) ?? 'none', snapshot: each }));
    },
  };
}

const shown = (state: CeilingState | null): CeilingsNow['perMinute'] =>
  state && { limit: state.limit, remaining: state.remaining, resetMs: state.nextSlotMs };

/** All lanes and buckets are read at once, and at most this often: a view of all workspaces asks for each. Milliseconds. */
const readGoodMs = 250;

/** What `read` returns, read again when it is older than {@link readGoodMs}. */
function readSeldom<T>(clock: Pick<Clock, 'monotonic'>, read: () => T): () => T {
  let last: { readonly at: number; readonly value: T } | null = null;
  return () => {
    const at = clock.monotonic();
    if (last === null || at - last.at >= readGoodMs) last = { at, value: read() };
    return last.value;
  };
}

/**
 * Expected wait of a call that arrived now, milliseconds. `ceilingMs`: of the workspace's own ceiling. The bucket adds the
 * time until it opens, and until its meters of requests have room behind the calls that wait already and those that come back. Tokens and cost are
 * left out: they depend on the call. `null` when nothing is known. An
 * expectation, never a promise: others may come first, and the upstream may say something new.
 */
export function nextSlotMs(ceilingMs: number | null, bucket: BucketSnapshot | null): number | null {
  if (bucket === null) return ceilingMs;
  let waitMs = Math.max(ceilingMs ?? 0, bucket.closedMs);
  for (const { meter, level, limit, windowMs } of bucket.meters) {
    if (!meter.startsWith('requests') || limit <= 0) continue;
    waitMs = Math.max(waitMs, ((level + bucket.waiting + bucket.reserved + 1 - limit) * windowMs) / limit);
  }
  return waitMs;
}
