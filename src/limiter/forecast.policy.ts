/**
 * How long a call at a given place of a lane will wait, from what the bucket knows now. It is what a caller is told
 * when it is refused at once, so it must be neither hopeful nor gloomy: the time at which every meter has drained
 * enough for the calls that go first and this one, not before the bucket opens or the lane wakes, and for lanes with
 * a cap on calls in flight not before those in flight and ahead have been served. A place that a call of unknown fate
 * keeps taken is free again when its lease ends, and not before.
 *
 * Other lanes are counted by their share: while this lane sends `ahead + 1` calls, the others send at most
 * `(ahead + 1) * (their weight / this weight)`, and never more than they have waiting.
 */
import type { Costs, MeterName } from '../call.ts';
import { costEntries, meterOf, type Bucket, type Lane } from './bucket-state.policy.ts';
import { restMs, roomInMs } from './meter.policy.ts';

export interface Place {
  readonly costs: Costs;
  readonly weight: number;
  readonly maxInFlight: number | null;
  /** Tickets of the same lane that go first. */
  readonly ahead: number;
}

export interface Forecast {
  readonly waitMs: number;
  /** The longest wait comes from a daily meter. */
  readonly day: boolean;
}

/** `lane` is `undefined` for a workspace that has nothing in this bucket yet. */
export function forecastAt(bucket: Bucket, lane: Lane | undefined, place: Place, now: number): Forecast {
  const others = othersAhead(bucket, lane, place);
  let waitMs = Math.max(0, bucket.closedUntil - now, (lane?.asleepUntil ?? 0) - now);
  let day = false;
  for (const [name, units] of costEntries(place.costs)) {
    const needed = units + costAhead(bucket, lane, place.ahead, others, name);
    const meterMs = drainFor(bucket, name, units, needed, now);
    if (meterMs <= waitMs) continue;
    waitMs = meterMs;
    day = name === 'requests_day' || name === 'tokens_day';
  }
  const servedMs = serialWaitMs(lane, place, now);
  return servedMs > waitMs ? { waitMs: servedMs, day: false } : { waitMs, day };
}

/** Calls of other lanes expected to go before the place. */
function othersAhead(bucket: Bucket, lane: Lane | undefined, place: Place): number {
  const waitingHere = lane?.line.size ?? 0;
  const weightElsewhere = bucket.waitingWeight - (waitingHere > 0 ? (lane?.weight ?? 0) : 0);
  const byShare = Math.floor(((place.ahead + 1) * Math.max(0, weightElsewhere)) / place.weight);
  return Math.min(bucket.waiting - waitingHere, byShare);
}

/** On an average, of which no call takes more than the limit: it may have entered before the limit was known. */
function costAhead(
  bucket: Bucket,
  lane: Lane | undefined,
  ahead: number,
  others: number,
  name: MeterName,
): number {
  const limit = bucket.meters.get(name)?.limit ?? 0;
  const waitingHere = lane?.line.size ?? 0;
  const costHere = lane?.waitingCosts.get(name) ?? 0;
  const waitingElsewhere = bucket.waiting - waitingHere;
  const costElsewhere = (bucket.waitingCosts.get(name) ?? 0) - costHere;
  const here = waitingHere > 0 ? (costHere * ahead) / waitingHere : 0;
  const elsewhere = waitingElsewhere > 0 ? (costElsewhere * others) / waitingElsewhere : 0;
  return Math.min(here, ahead * limit) + Math.min(elsewhere, others * limit);
}

/** Room for the call itself, plus the draining time of everything that goes first. */
function drainFor(bucket: Bucket, name: MeterName, units: number, needed: number, now: number): number {
  const meter = meterOf(bucket, name, now);
  if (meter.limit <= 0) return 0;
  const alone = roomInMs(meter, units, now);
  const rate = meter.limit / meter.windowMs;
  const over = meter.level + needed - (meter.limit - meter.reserve);
  return needed > units ? Math.max(alone, restMs(meter, now) + over / rate) : alone;
}

/**
 * A capped lane serves one round after the other. The round under way counts half; one that takes longer than usual is
 * expected to last as long again as it is late.
 */
function serialWaitMs(lane: Lane | undefined, { maxInFlight, ahead }: Place, now: number): number {
  if (lane === undefined || maxInFlight === null) return 0;
  const { serviceMs, abandoned } = lane;
  const standsUntil = abandoned[abandoned.length - maxInFlight];
  if (standsUntil !== undefined) {
    return Math.max(0, standsUntil - now) + Math.floor(ahead / maxInFlight) * serviceMs;
  }
  const served = lane.inFlight - abandoned.length;
  const rounds = Math.floor((ahead + served) / (maxInFlight - abandoned.length));
  if (rounds < 1) return 0;
  const underWayMs = Math.max(serviceMs / 2, now - lane.grantedAt - serviceMs);
  return underWayMs + (rounds - 1) * serviceMs;
}
