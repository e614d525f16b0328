/**
 * How long a call at a given position of a lane will wait, from what the bucket knows now. A client that is refused at once is
 * given this time, so it must be neither too short nor too long. The call can leave when
 * - every meter has drained enough for this call and for the calls that go first,
 * - the bucket is open and the lane awake; the calls that go first leave only from then on,
 * - in a lane or a bucket with a cap on calls in flight, the calls in flight and ahead have been served. A call of unknown fate counts as in
 *   flight until its lease ends.
 *
 * How many calls of other lanes go first: `forecast-others.policy.ts`.
 */
import type { MeterName } from '../../call.ts';
import type { HeldBy } from '../../errors.ts';
import { isBackground, type LaneKey, type TicketId } from '../../ids.ts';
import type { WaitForecast } from '../limiter.ts';
import { dueAfterMs } from './background.policy.ts';
import { allWaiting, closedMs, type Bucket, type Lane } from './bucket-state.policy.ts';
import { callsAhead, firstIn } from './callers.policy.ts';
import { ceilingWindowMs } from './ceiling.policy.ts';
import { knownCosts } from './documents.policy.ts';
import { metersForecast, type Forecast, type Needed } from './forecast-meters.policy.ts';
import {
  inSum,
  laneByLane,
  othersAhead,
  unitsAhead,
  type Elsewhere,
  type LanePosition,
  type OthersAhead,
} from './forecast-others.policy.ts';
import { isFull, maxInFlightOf } from './in-flight.policy.ts';
import { inFlightOf, twinIn } from './lanes.policy.ts';
import { reservedAhead, type ReservedAhead } from './reservations.policy.ts';
import { meterNames } from './meter.policy.ts';
import {
  afterStandstill,
  bucketStandstill,
  laneStandstill,
  placesOfBucket,
  placesOfLane,
  roundsForecast,
  serialForecast,
} from './standstill.policy.ts';
import { cappedCosts, serviceCost, sumCosts, waitingUnits } from './waiting-costs.policy.ts';

/** So many calls ahead in a lane are read one by one. */
const maxRead = 32;

/** The forecast of a ceiling reaches this many windows ahead: no call may wait longer. */
export const maxWindows = 10;

/** The expected wait of a call at this position. */
export function forecastAt(bucket: Bucket, position: LanePosition, now: number): Forecast {
  const elsewhere = laneByLane(bucket, position, inSum(bucket, position));
  return forecastBehind(bucket, { position, elsewhere }, now);
}

/** A position, and how long its call may wait. */
export interface LimitedWait {
  readonly position: LanePosition;
  readonly withinMs: number;
}

/**
 * The expected wait, which may be too long where it is within `withinMs`: most calls may wait for much longer than they have to, and
 * other lanes are read one by one only for those that would be refused.
 */
export function forecastWithin(bucket: Bucket, { position, withinMs }: LimitedWait, now: number): Forecast {
  if (isFree(bucket, position, now)) return { waitMs: 0, heldBy: 'queue' };
  const sum = inSum(bucket, position);
  const rough = forecastBehind(bucket, { position, elsewhere: sum }, now);
  if (rough.waitMs <= withinMs) return rough;
  const elsewhere = laneByLane(bucket, position, sum);
  return elsewhere === sum ? rough : forecastBehind(bucket, { position, elsewhere }, now);
}

/** Nobody waits and nothing stands still, so that only the meters are to be asked: the forecast of most calls. */
const isFree = (bucket: Bucket, position: LanePosition, now: number): boolean =>
  allWaiting(bucket) === 0 &&
  bucket.reservations.size === 0 &&
  position.maxInFlight === null &&
  maxInFlightOf(bucket, now) === null &&
  (position.lane?.asleep.size ?? 0) === 0 &&
  closedMs(bucket, now) === 0 &&
  metersForecast(bucket, needsOf(bucket, { position, reserved: null }, []), now).waitMs === 0;

/**
 * Within how long a background call leaves because it is due, whoever else comes. For whether it may wait: who is refused and comes back is
 * due a minute after that.
 */
export function dueWithinMs(bucket: Bucket, position: LanePosition, now: number): number {
  const ofBucket = bucketStandstill(bucket, now);
  const standstillMs = laneStandstill(bucket, { position, ofBucket }, now).waitMs;
  return Math.max(dueAfterMs(bucket, now), standstillMs) + serviceCost(bucket, position.costs);
}

/** A position, what waits in other lanes, and the reservations that go first; `null` = none. */
interface Behind {
  readonly position: LanePosition;
  readonly elsewhere: Elsewhere | null;
  readonly reserved: ReservedAhead | null;
}

/** The longer a call waits, the more calls of other lanes do their ceilings let go before it. */
function forecastBehind(bucket: Bucket, behind: Omit<Behind, 'reserved'>, now: number): Forecast {
  const { position, elsewhere } = behind;
  if (elsewhere === null || elsewhere.lanes.every(({ lane }) => lane.perMinute === null))
    return forecastAfterReserved(bucket, behind, now);
  // At least twice as many windows each time, so that it takes few steps.
  for (let windows = 1; ;) {
    const within = { position, elsewhere: { ...elsewhere, windows } };
    const forecast = forecastAfterReserved(bucket, within, now);
    const needed = Math.ceil(forecast.waitMs / ceilingWindowMs);
    if (needed <= windows) return forecast;
    windows = Math.max(needed, 2 * windows);
  }
}

function forecastAfterReserved(bucket: Bucket, behind: Omit<Behind, 'reserved'>, now: number): Forecast {
  const { reservations, reservationsDue } = bucket;
  if (reservations.size === 0) return forecastAmong(bucket, { ...behind, reserved: null }, now);
  // Those go first that are due before the call would leave otherwise, which makes it leave later. Twice as many more each time, so
  // that it takes few steps; what the last of them take may be told in vain.
  let count = reservationsDue.before(now, '');
  for (let more = 1; ; more *= 2) {
    const reserved = reservedAhead(bucket, behind.position, count);
    const forecast = forecastAmong(bucket, { ...behind, reserved }, now);
    const before = reservationsDue.before(now + forecast.waitMs, '');
    if (before <= count) return forecast;
    count = Math.min(reservations.size, Math.max(before, count + more));
  }
}

/** How many calls and reservations of its lane go before a call that waits for so long. */
export function aheadInLane(bucket: Bucket, position: LanePosition, leavesAt: number): number {
  if (bucket.reservations.size === 0) return position.ahead;
  const count = bucket.reservationsDue.before(leavesAt, '');
  return position.ahead + reservedAhead(bucket, position, count).inLane;
}

/** The wait of a call that came back for its reservation: others have left its room free. */
export const forecastReturning = (bucket: Bucket, position: LanePosition, now: number): Forecast =>
  bucketForecast(bucket, { position, elsewhere: null, reserved: null }, now);

/** The wait that its client is told instead: all those are before it that were due before it. */
export function forecastAgain(
  bucket: Bucket,
  { position, id }: { readonly position: LanePosition; readonly id: TicketId },
  now: number,
): Forecast {
  const reserved = reservedAhead(bucket, position, bucket.reservationsDue.rank(id, 0));
  return bucketForecast(bucket, { position, elsewhere: null, reserved }, now);
}

function forecastAmong(bucket: Bucket, behind: Behind, now: number): Forecast {
  let longest = bucketForecast(bucket, behind, now);
  const { position, elsewhere, reserved } = behind;
  const { perMinute } = position;
  if (perMinute === null) return longest;
  const ahead = position.ahead + (reserved?.inLane ?? 0);
  // A call leaves one window of its ceiling after the previous call that used the same slot.
  for (let windows = 1; windows <= maxWindows && windows * perMinute <= ahead; windows += 1) {
    const before = { ...position, ahead: Math.max(0, position.ahead - windows * perMinute) };
    const { waitMs: ofBucketMs } = bucketForecast(
      bucket,
      { position: before, elsewhere, reserved: null },
      now,
    );
    const waitMs = ofBucketMs + windows * ceilingWindowMs;
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy: 'ceiling_minute' };
  }
  return longest;
}

/** The wait that the bucket alone causes, whatever the workspace's ceiling allows. */
function bucketForecast(bucket: Bucket, { position, elsewhere, reserved }: Behind, now: number): Forecast {
  const { lane } = position;
  let longest: Forecast = { waitMs: 0, heldBy: heldAnyhow(bucket, lane, now) };
  const consider = ({ waitMs, heldBy }: Forecast): void => {
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy };
  };
  const ofBucket = bucketStandstill(bucket, now);
  const others = elsewhere === null ? [] : othersAhead(bucket, position, elsewhere);
  const all = needsOf(bucket, { position, reserved }, others);
  consider(afterStandstill(ofBucket, metersForecast(bucket, all, now + ofBucket.waitMs)));
  const ofLane = laneStandstill(bucket, { position, ofBucket }, now);
  if (ofLane.waitMs > ofBucket.waitMs) {
    // Calls of other lanes do not stand still with this one.
    const own = needsOf(bucket, { position, reserved }, []);
    consider(afterStandstill(ofLane, metersForecast(bucket, own, now + ofLane.waitMs)));
  }
  const aheadHere = position.ahead + (reserved?.inLane ?? 0);
  const aheadInBucket = others.reduce((sum, { ahead }) => sum + ahead, aheadHere);
  for (const [places, standstill, ahead] of [
    [placesOfLane(bucket, position), ofLane, aheadHere + firstInWorkspace(bucket, position)],
    [placesOfBucket(bucket, now, position.serviceMs), ofBucket, aheadInBucket],
  ] as const) {
    if (places === null) continue;
    consider(serialForecast(places, ahead, now));
    if (standstill.waitMs > 0) consider(afterStandstill(standstill, roundsForecast(places, ahead)));
  }
  return longest;
}

/** Calls of the workspace that go before all calls of a background lane. */
const firstInWorkspace = (bucket: Bucket, { key }: LanePosition): number =>
  isBackground(key) ? (twinIn(bucket, { key })?.line.size ?? 0) : 0;

/**
 * What holds a call to which no time can be told: the response that states a document's cost may come at any moment, and so may the end
 * of a call that holds a place in flight.
 */
function heldAnyhow(bucket: Bucket, lane: Lane | undefined, now: number): HeldBy {
  if (lane?.asleep.has('document') === true) return 'cost';
  const isAtCap =
    lane !== undefined && lane.maxInFlight !== null && inFlightOf(bucket, lane) >= lane.maxInFlight;
  return isAtCap || isFull(bucket, now) ? 'serialized' : 'queue';
}

/** What the call takes from each meter, and what goes before it: calls of its lane, and these of other lanes. */
function needsOf(
  bucket: Bucket,
  { position, reserved }: Pick<Behind, 'position' | 'reserved'>,
  others: readonly OthersAhead[],
): Needed[] {
  const { costs } = position;
  const inLane = costsAhead(bucket, position);
  const needs: Needed[] = [];
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    // Calls ahead in the lane count whatever meters they take from; calls of other lanes only where this call or one of these takes from it.
    const own = waitingUnits(bucket, inLane, name) + (reserved?.units.get(name) ?? 0);
    const ahead = units + own > 0 ? own + unitsAhead(bucket, others, name) : own;
    if (units + ahead > 0) needs.push({ name, units, ahead });
  }
  return needs;
}

const nothing: ReadonlyMap<MeterName, number> = new Map();

/** What the calls ahead in the same lane take: of few calls each as it is, of more their mean. */
function costsAhead(bucket: Bucket, { lane, ahead }: LanePosition): ReadonlyMap<MeterName, number> {
  const waiting = lane?.line.size ?? 0;
  if (lane === undefined || waiting === 0 || ahead <= 0) return nothing;
  const sums = new Map<MeterName, number>();
  if (ahead <= maxRead && lane.callers === null) {
    for (const id of lane.line.firstNames(ahead)) {
      const ticket = bucket.tickets.get(id);
      if (ticket !== undefined) sumCosts(sums, cappedCosts(bucket, ticket.costs), 1);
    }
    return sums;
  }
  for (const [name, units] of lane.waitingCosts) {
    const limit = bucket.meters.get(name)?.limit ?? units;
    sums.set(name, Math.min((units * ahead) / waiting, ahead * limit));
  }
  return sums;
}

/** Where a ticket stands; `null` if it does not wait. */
export function positionOf(bucket: Bucket, id: TicketId, serviceMs = 0): LanePosition | null {
  const ticket = bucket.tickets.get(id);
  if (ticket === undefined || ticket.lease !== null) return null;
  const lane = bucket.lanes.get(ticket.lane);
  if (lane === undefined) return null;
  return {
    lane,
    key: lane.key,
    costs: knownCosts(bucket, ticket.costs, ticket.document),
    weight: lane.weight,
    maxInFlight: lane.maxInFlight,
    perMinute: lane.perMinute,
    ahead: callsAhead(bucket, lane, ticket),
    order: ticket.order,
    own: ticket.reservation?.id ?? null,
    serviceMs,
  };
}

/**
 * Expected wait of a ticket, what it waits for, and how many tickets of its lane go first; `null` if the ticket does not wait. `serviceMs`:
 * as of a position.
 */
export function forecast(bucket: Bucket, id: TicketId, now: number, serviceMs = 0): WaitForecast | null {
  const position = positionOf(bucket, id, serviceMs);
  if (position === null) return null;
  const expected = forecastAt(bucket, position, now);
  return { ...expected, ahead: aheadInLane(bucket, position, now + expected.waitMs) };
}

/**
 * What the first waiting ticket of a lane waits for; `null` if none waits. Other lanes count in sum, so that it takes the same time however
 * many there are.
 */
export function forecastFirst(bucket: Bucket, key: LaneKey, now: number): Forecast | null {
  const lane = bucket.lanes.get(key);
  const first = lane === undefined ? undefined : firstIn(lane);
  const position = first === undefined ? null : positionOf(bucket, first);
  return position === null
    ? null
    : forecastBehind(bucket, { position, elsewhere: inSum(bucket, position) }, now);
}
