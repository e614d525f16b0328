/**
 * What the gateway shows of its own state to pages and gauges: ceilings and buckets, with the upstreams they belong to.
 *
 * Owns: which bucket belongs to which upstream and ceiling, as the latest calls named them. Does not own: how that is shown.
 */
import { LastBuckets } from '../activity/last-buckets.ts';
import { nextSlotMs } from '../activity/next-slot.policy.ts';
import type { CeilingsNow } from '../activity/shape.ts';
import type { AdmissionQueue } from '../admission/admission.ts';
import type { AdmissionRequest } from '../admission/ticket.ts';
import type { Clock } from '../clock.ts';
import type { CeilingRef, Ceilings, CeilingState } from '../limiter/ceilings.ts';
import type { BucketKey, Limiter } from '../limiter/limiter.ts';
import type { ObservedBucket } from '../telemetry/events.ts';

/** Names of buckets kept for the gauges. */
const maxBucketNames = 10_000;

export interface Pressure {
  /** A call goes to this bucket under this ceiling. */
  remember(request: AdmissionRequest): void;
  /** State of one ceiling, now. */
  ceilings(ceiling: CeilingRef): Promise<Omit<CeilingsNow, 'refusing'>>;
  /** Buckets that calls to this upstream named. */
  bucketsOf(upstream: string): readonly BucketKey[];
  /** Buckets touched by this replica. */
  buckets(): readonly ObservedBucket[];
}

export const noCeilings: CeilingsNow = { perMinute: null, perDay: null, nextSlotMs: null, refusing: null };

export function createPressure(parts: {
  readonly clock: Clock;
  readonly limiter: Pick<Limiter, 'snapshot'>;
  readonly ceilings: Ceilings;
  readonly admission: Pick<AdmissionQueue, 'waitingUnder'>;
}): Pressure {
  const { clock, limiter, ceilings, admission } = parts;
  const upstreamOf = new Map<BucketKey, string>();
  const lastBuckets = new LastBuckets(clock, () => limiter.snapshot());
  return {
    remember(request) {
      if (upstreamOf.size >= maxBucketNames) upstreamOf.clear();
      upstreamOf.set(request.admission.bucket, request.upstream);
      lastBuckets.used(request.ceiling.key, request.admission.bucket);
    },
    async ceilings(ceiling) {
      const [perMinute, perDay] = await Promise.all([ceilings.state(ceiling), ceilings.dayState(ceiling)]);
      const [hold] = await ceilings.forecast(ceiling, [admission.waitingUnder(ceiling.key) + 1]);
      return {
        perMinute: shown(perMinute),
        perDay: shown(perDay),
        nextSlotMs: nextSlotMs(hold?.waitMs ?? null, lastBuckets.of(ceiling.key)),
      };
    },
    bucketsOf: (upstream) => [...upstreamOf].flatMap(([key, of]) => (of === upstream ? [key] : [])),
    buckets: () =>
      limiter.snapshot().map((snapshot) => ({
        upstream: upstreamOf.get(snapshot.bucket) ?? 'none',
        snapshot,
      })),
  };
}

const shown = (state: CeilingState | null): CeilingsNow['perMinute'] =>
  state === null ? null : { limit: state.limit, remaining: state.remaining, resetMs: state.nextSlotMs };
