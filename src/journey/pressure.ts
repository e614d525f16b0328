/**
 * What the gateway shows of its own state to pages and gauges: ceilings and buckets, with the upstreams they belong to.
 *
 * Owns: which bucket belongs to which upstream and ceiling, as calls named them lately. Refuses to own: what is made of it.
 */
import { createLastBuckets } from '../activity/last-buckets.ts';
import { nextSlotMs } from '../activity/next-slot.policy.ts';
import type { Desk } from '../admission/admit.ts';
import type { Clock } from '../clock.ts';
import type { CeilingRef, Ceilings, CeilingState } from '../limiter/ceilings.ts';
import type { Limiter } from '../limiter/limiter.ts';
import type { CeilingsNow } from '../page/observation.ts';
import type { ObservedBucket } from '../telemetry/events.ts';
import type { Prepared } from './prepare.ts';

/** Names of buckets kept for the gauges. */
const maxBucketNames = 10_000;

export interface Pressure {
  /** A call goes to this bucket under this ceiling. */
  remember(prepared: Pick<Prepared, 'entry'>): void;
  /** State of one ceiling, now. */
  ceilings(ceiling: CeilingRef): Promise<CeilingsNow>;
  /** Buckets touched by this replica. */
  buckets(): readonly ObservedBucket[];
}

export const noCeilings: CeilingsNow = { perMinute: null, perDay: null, nextSlotMs: null };

export function createPressure(parts: {
  readonly clock: Clock;
  readonly limiter: Pick<Limiter, 'snapshot'>;
  readonly ceilings: Ceilings;
  readonly desk: Pick<Desk, 'waitingUnder'>;
}): Pressure {
  const { clock, limiter, ceilings, desk } = parts;
  const upstreamOf = new Map<string, string>();
  const lastBuckets = createLastBuckets(clock, () => limiter.snapshot());
  return {
    remember({ entry }) {
      if (upstreamOf.size >= maxBucketNames) upstreamOf.clear();
      upstreamOf.set(entry.admission.bucket, entry.upstream);
      lastBuckets.used(entry.ceiling.key, entry.admission.bucket);
    },
    async ceilings(ceiling) {
      const [perMinute, perDay] = await Promise.all([ceilings.state(ceiling), ceilings.dayState(ceiling)]);
      const [hold] = await ceilings.forecast(ceiling, [desk.waitingUnder(ceiling.key) + 1]);
      return {
        perMinute: shown(perMinute),
        perDay: shown(perDay),
        nextSlotMs: nextSlotMs(hold?.waitMs ?? null, lastBuckets.of(ceiling.key)),
      };
    },
    buckets: () =>
      limiter.snapshot().map((snapshot) => ({
        upstream: upstreamOf.get(snapshot.bucket) ?? 'none',
        snapshot,
      })),
  };
}

const shown = (state: CeilingState | null): CeilingsNow['perMinute'] =>
  state === null ? null : { limit: state.limit, remaining: state.remaining, resetMs: state.nextPlaceMs };
