/**
 * How long nobody at all can leave a bucket or a lane, however much room there is: nothing is taken from the meters meanwhile, so
 * that the calls of a line begin to take their turns only afterwards. Part of the specification in `scheduler.policy.ts`.
 *
 * Owns: closings, sleeping lanes, slots of calls of unknown fate; the rounds of a lane with a cap. Does not own: the wait for meters
 * (`forecast-meters.policy.ts`). Pure.
 */
import type { HeldBy } from '../../errors.ts';
import type { SleepReason } from '../limiter.ts';
import { closedMs, type Bucket, type Lane } from './bucket-state.policy.ts';
import type { Forecast } from './forecast-meters.policy.ts';

/** Of equal waits, a refusal names the first in this order. */
const sleepReasons = ['ceiling_minute', 'ceiling_day', 'backoff'] as const satisfies readonly SleepReason[];

/** What refusals name when the lane sleeps for this reason. In a back-off the upstream is closed for this lane alone. */
const heldBySleep: Readonly<Record<(typeof sleepReasons)[number], HeldBy>> = {
  ceiling_minute: 'ceiling_minute',
  ceiling_day: 'ceiling_day',
  backoff: 'closed',
};

/** A lane and its cap. */
export interface CappedLane {
  /** `undefined`: the workspace has no lane in this bucket yet. */
  readonly lane: Lane | undefined;
  /** `null` = no cap. */
  readonly maxInFlight: number | null;
}

export const bucketStandstill = (bucket: Bucket, now: number): Forecast => ({
  waitMs: closedMs(bucket, now),
  heldBy: 'closed',
});

/** Until the first call of the lane can leave: its bucket's standstill, or its own if that is longer. */
export function laneStandstill(bucket: Bucket, position: CappedLane, now: number): Forecast {
  const { lane } = position;
  let longest = bucketStandstill(bucket, now);
  for (const reason of sleepReasons) {
    const until = lane?.asleep.get(reason);
    if (until !== undefined && until - now > longest.waitMs)
      longest = { waitMs: until - now, heldBy: heldBySleep[reason] };
  }
  for (const until of [slotsHeldUntil(position), withheldUntil(bucket, position)]) {
    if (until !== null && until - now > longest.waitMs)
      longest = { waitMs: until - now, heldBy: 'serialized' };
  }
  return longest;
}

/** Until when the lane waits for calls of other replicas; `null` = it does not, or they may say sooner that there are none. */
const withheldUntil = ({ withheld }: Bucket, { maxInFlight }: CappedLane): number | null =>
  maxInFlight !== null && withheld?.what === 'capped_lanes_alone' ? withheld.until : null;

/** When the first slot of a lane comes back of which calls of unknown fate hold all; `null` = there is another one. */
function slotsHeldUntil({ lane, maxInFlight }: CappedLane): number | null {
  if (lane === undefined || maxInFlight === null) return null;
  return lane.abandoned[lane.abandoned.length - maxInFlight] ?? null;
}

/** What comes after a standstill adds to it; what takes longer is named. */
export const afterStandstill = (standstill: Forecast, then: Forecast): Forecast => ({
  waitMs: standstill.waitMs + then.waitMs,
  heldBy: then.waitMs > standstill.waitMs ? then.heldBy : standstill.heldBy,
});

/** The rounds that a lane with a cap takes after a standstill: until then the calls in flight have ended. */
export const roundsForecast = ({ lane, maxInFlight }: CappedLane, ahead: number): Forecast => ({
  waitMs: lane === undefined || maxInFlight === null ? 0 : Math.floor(ahead / maxInFlight) * lane.serviceMs,
  heldBy: 'serialized',
});

/**
 * A capped lane serves its calls in rounds of `maxInFlight`. A round under way counts as half over. Once it takes longer than
 * usual, it is expected to take as much longer again as it is late already.
 */
export function serialWaitMs(
  { lane, maxInFlight, ahead }: CappedLane & { readonly ahead: number },
  now: number,
): number {
  if (lane === undefined || maxInFlight === null) return 0;
  const { serviceMs, abandoned } = lane;
  // Of a lane without a slot see `laneStandstill`.
  if (abandoned.length >= maxInFlight) return 0;
  const served = lane.inFlight - abandoned.length;
  const rounds = Math.floor((ahead + served) / (maxInFlight - abandoned.length));
  if (rounds < 1) return 0;
  if (served === 0 || lane.grantedAt === null) return rounds * serviceMs;
  const underWayMs = Math.max(serviceMs / 2, now - lane.grantedAt - serviceMs);
  return underWayMs + (rounds - 1) * serviceMs;
}
