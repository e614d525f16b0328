/**
 * How long nobody at all can leave a bucket or a lane, however much room there is: nothing is taken from the meters meanwhile, so
 * that the calls of a line begin to take their turns only afterwards. Part of the specification in `scheduler.policy.ts`.
 *
 * Owns: closings, sleeping lanes, places of calls of unknown fate; the rounds of a lane or a bucket with a cap. Does not own: the wait for meters
 * (`forecast-meters.policy.ts`). Pure.
 */
import type { HeldBy } from '../../errors.ts';
import type { LaneKey } from '../../ids.ts';
import type { SleepReason } from '../limiter.ts';
import { closedMs, type Bucket, type Lane } from './bucket-state.policy.ts';
import { maxInFlightOf } from './in-flight.policy.ts';
import { twinIn } from './lanes.policy.ts';
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
interface LaneAndCap {
  /** `undefined`: the workspace has no lane in this bucket yet. */
  readonly lane: Lane | undefined;
  readonly key: LaneKey;
  /** `null` = no cap. */
  readonly maxInFlight: number | null;
  /** How long calls are known to take beside what the lane's own have taken, milliseconds. Absent: nothing is known. */
  readonly serviceMs?: number;
}

/** The places in flight of a lane or of a bucket. */
export interface Places {
  readonly maxInFlight: number;
  readonly inFlight: number;
  /** When the places come back that calls of unknown fate hold, soonest first; these are counted in `inFlight`. */
  readonly abandoned: readonly number[];
  /** Mean time that a call holds a place, milliseconds. */
  readonly serviceMs: number;
  readonly grantedAt: number | null;
}

/** `null`: the lane has no cap. */
export function placesOfLane(bucket: Bucket, position: LaneAndCap): Places | null {
  const { lane, key, maxInFlight } = position;
  if (maxInFlight === null) return null;
  const twin = twinIn(bucket, { key });
  const { inFlight = 0, abandoned = [], grantedAt = null } = lane ?? {};
  const serviceMs = Math.max(lane?.serviceMs ?? 0, position.serviceMs ?? 0);
  if (twin === undefined) return { maxInFlight, inFlight, abandoned, serviceMs, grantedAt };
  return {
    maxInFlight,
    inFlight: inFlight + twin.inFlight,
    abandoned: [...abandoned, ...twin.abandoned].toSorted((one, other) => one - other),
    serviceMs: Math.max(serviceMs, twin.serviceMs),
    grantedAt: latest(grantedAt, twin.grantedAt),
  };
}

const latest = (one: number | null, other: number | null): number | null =>
  one === null || other === null ? (one ?? other) : Math.max(one, other);

/** `null`: the bucket has no cap. */
export function placesOfBucket(bucket: Bucket, now: number, knownMs = 0): Places | null {
  const { leases, lastGrantAt } = bucket;
  const serviceMs = Math.max(bucket.serviceMs, knownMs);
  const maxInFlight = maxInFlightOf(bucket, now);
  if (maxInFlight === null) return null;
  const abandoned: number[] = [];
  for (const { stage, expiresAt } of leases.values()) if (stage === 'abandoned') abandoned.push(expiresAt);
  abandoned.sort((one, other) => one - other);
  return { maxInFlight, inFlight: leases.size, abandoned, serviceMs, grantedAt: lastGrantAt };
}

/** Until the first call of the bucket can leave. */
export function bucketStandstill(bucket: Bucket, now: number): Forecast {
  const closed: Forecast = { waitMs: closedMs(bucket, now), heldBy: 'closed' };
  return longerOf(closed, placesStandstill(bucket, placesOfBucket(bucket, now), now));
}

/** Until the first call of the lane can leave: its bucket's standstill, or its own if that is longer. */
export function laneStandstill(
  bucket: Bucket,
  { position, ofBucket }: { readonly position: LaneAndCap; readonly ofBucket: Forecast },
  now: number,
): Forecast {
  let longest = ofBucket;
  for (const reason of sleepReasons) {
    const until = position.lane?.asleep.get(reason);
    if (until !== undefined)
      longest = longerOf(longest, { waitMs: until - now, heldBy: heldBySleep[reason] });
  }
  return longerOf(longest, placesStandstill(bucket, placesOfLane(bucket, position), now));
}

/** Of equal waits the first. */
const longerOf = (one: Forecast, other: Forecast): Forecast => (other.waitMs > one.waitMs ? other : one);

/**
 * While calls of unknown fate hold all places, or may, as other replicas have not told of theirs and nobody will say sooner that there
 * are none.
 */
function placesStandstill({ withheld }: Bucket, places: Places | null, now: number): Forecast {
  if (places === null) return { waitMs: 0, heldBy: 'serialized' };
  const { abandoned, maxInFlight } = places;
  const heldUntil = abandoned[abandoned.length - maxInFlight] ?? now;
  const withheldUntil = withheld?.what === 'capped_lanes_alone' ? withheld.until : now;
  return { waitMs: Math.max(0, heldUntil - now, withheldUntil - now), heldBy: 'serialized' };
}

/** What comes after a standstill adds to it; what takes longer is named. */
export const afterStandstill = (standstill: Forecast, then: Forecast): Forecast => ({
  waitMs: standstill.waitMs + then.waitMs,
  heldBy: then.waitMs > standstill.waitMs ? then.heldBy : standstill.heldBy,
});

/** The rounds that a lane or a bucket with a cap takes after a standstill: until then the calls in flight have ended. */
export const roundsForecast = ({ maxInFlight, serviceMs }: Places, ahead: number): Forecast => ({
  waitMs: Math.floor(ahead / maxInFlight) * serviceMs,
  heldBy: 'serialized',
});

/**
 * Where there is a cap, calls are served in rounds of `maxInFlight`. A round under way counts as half over. Once it takes longer than
 * usual, it is expected to take as much longer again as it is late already.
 */
export function serialForecast(places: Places, ahead: number, now: number): Forecast {
  return { waitMs: serialWaitMs(places, ahead, now), heldBy: 'serialized' };
}

function serialWaitMs(
  { maxInFlight, inFlight, abandoned, serviceMs, grantedAt }: Places,
  ahead: number,
  now: number,
): number {
  // Without a place see `placesStandstill`.
  if (abandoned.length >= maxInFlight) return 0;
  const served = inFlight - abandoned.length;
  const rounds = Math.floor((ahead + served) / (maxInFlight - abandoned.length));
  if (rounds < 1) return 0;
  if (served === 0 || grantedAt === null) return rounds * serviceMs;
  const underWayMs = Math.max(serviceMs / 2, now - grantedAt - serviceMs);
  return underWayMs + (rounds - 1) * serviceMs;
}
