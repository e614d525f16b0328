/**
 * How long a call at a given position of a lane will wait, from what the bucket knows now. A client that is refused at once is
 * given this time, so it must be neither too short nor too long. The call can leave when
 * - every meter has drained enough for this call and for the calls that go first,
 * - the bucket is open and the lane awake; the calls that go first leave only from then on,
 * - in a lane or a bucket with a cap on calls in flight, the calls in flight and ahead have been served. A call of unknown fate counts as in
 *   flight until its lease ends.
 */
import type { Costs, MeterName } from '../../call.ts';
import type { HeldBy } from '../../errors.ts';
import { isBackground, type LaneKey, type TicketId } from '../../ids.ts';
import type { Hold, SleepReason, WaitForecast } from '../limiter.ts';
import * as buckets from './bucket-state.policy.ts';
import type { Bucket, Lane, Lease, WaitingCalls } from './bucket-state.policy.ts';
import { ceilingWindowMs } from './ceiling.policy.ts';
import type { Meter } from './meter.policy.ts';
import { reservedAhead, type ReservedAhead } from './reservations.policy.ts';
import * as lanes from './lanes.policy.ts';
import * as meters from './meter.policy.ts';

/** So many calls ahead in a lane are read one by one. */
const maxRead = 32;

/** The forecast of a ceiling reaches this many windows ahead: no call may wait longer. */
export const maxWindows = 10;

/** Where a call stands, or would stand, in its lane. */
export interface LanePosition {
  /** `undefined`: the workspace has no lane in this bucket yet. */
  readonly lane: Lane | undefined;
  /** The lane's name, also when there is no lane yet. */
  readonly key: LaneKey;
  readonly costs: Costs;
  /** As of a ticket. While no document's cost is known, points are guesses, which alone make nobody wait. */
  readonly document: string | null;
  readonly weight: number;
  readonly maxInFlight: number | null;
  /** The workspace's ceiling; `null` = none per minute. */
  readonly perMinute: number | null;
  /** Tickets of the same lane that go first. */
  readonly ahead: number;
  /** As of a ticket: reservations of its lane that come later do not go before it. */
  readonly order: number;
  /** What is kept for the call itself; `null` = nothing. */
  readonly own: TicketId | null;
  /** How long calls are known to take beside what those of the bucket have taken, milliseconds. Absent: nothing is known. */
  readonly serviceMs?: number;
}

/** A position, and the reservations that go first; `null` = none. */
interface Behind extends LanePosition {
  readonly reserved: ReservedAhead | null;
  /** Calls of other lanes go first, as many as their ceilings let go within so many windows; `null` = none go first. */
  readonly windows: number | null;
}

/** The expected wait of a call at this position. */
export function forecastAt(bucket: Bucket, position: LanePosition, now: number): Hold {
  const { reservations, reservationsDue } = bucket;
  // The longer a call waits, the more calls of other lanes do their ceilings let go before it, and the more reservations are due that make
  // it leave later. At least twice as many each time, so that it takes few steps; what the last of them take may be told in vain.
  let [windows, count] = [1, reservationsDue.before(now)];
  for (;;) {
    const reserved = reservations.size === 0 ? null : reservedAhead(bucket, position, count);
    const forecast = forecastAmong(bucket, { ...position, reserved, windows }, now);
    const needed = Math.ceil(forecast.waitMs / ceilingWindowMs);
    const before = reservationsDue.before(now + forecast.waitMs);
    if (needed <= windows && before <= count) return forecast;
    if (needed > windows) windows = Math.max(needed, 2 * windows);
    if (before > count) count = Math.min(reservations.size, Math.max(before, 2 * count));
  }
}

/**
 * Within how long a background call leaves because it is due, whoever else comes. For whether it may wait: who is refused and comes back is
 * due a minute after that.
 */
export function dueWithinMs(bucket: Bucket, position: LanePosition, now: number): number {
  const standstill = laneStandstill(bucket, position, bucketStandstill(bucket, now), now);
  return (
    Math.max(lanes.dueAfterMs(bucket, now), standstill.waitMs) + buckets.serviceCost(bucket, position.costs)
  );
}

/** How many calls and reservations of its lane go before a call that waits for so long. */
export function aheadInLane(bucket: Bucket, position: LanePosition, leavesAt: number): number {
  const count = bucket.reservationsDue.before(leavesAt);
  return position.ahead + reservedAhead(bucket, position, count).inLane;
}

/**
 * The wait of a call that came back for its reservation: others have left its room free.
 * @param again the reservation, where its client is told another time: all those are before it that were due before it
 */
export function forecastReturning(
  bucket: Bucket,
  position: LanePosition,
  now: number,
  again?: TicketId,
): Hold {
  const reserved =
    again === undefined ? null : reservedAhead(bucket, position, bucket.reservationsDue.rank(again, 0));
  return bucketForecast(bucket, { ...position, reserved, windows: null }, now);
}

function forecastAmong(bucket: Bucket, behind: Behind, now: number): Hold {
  let longest = bucketForecast(bucket, behind, now);
  const { perMinute } = behind;
  const inLane = aheadOf(behind);
  // A call leaves one window of its ceiling after the previous call that used the same slot.
  for (let windows = 1; perMinute !== null && windows <= maxWindows; windows += 1) {
    if (windows * perMinute > inLane) break;
    const ahead = Math.max(0, behind.ahead - windows * perMinute);
    const ofBucket = bucketForecast(bucket, { ...behind, ahead, reserved: null }, now);
    const waitMs = ofBucket.waitMs + windows * ceilingWindowMs;
    longest = longerOf(longest, { waitMs, heldBy: 'ceiling_minute' });
  }
  return longest;
}

/** Calls and reservations of its lane that go first. */
const aheadOf = ({ ahead, reserved }: Behind): number => ahead + (reserved?.inLane ?? 0);

/** The wait that the bucket alone causes, whatever the workspace's ceiling allows. */
function bucketForecast(bucket: Bucket, behind: Behind, now: number): Hold {
  let longest: Hold = { waitMs: 0, heldBy: heldAnyhow(bucket, behind.lane, now) };
  const consider = (standstill: Hold, then: Hold): void => {
    longest = longerOf(longest, afterStandstill(standstill, then));
  };
  const ofBucket = bucketStandstill(bucket, now);
  const others = othersAhead(bucket, behind);
  consider(ofBucket, metersForecast(bucket, needsOf(bucket, behind, others), now + ofBucket.waitMs));
  const ofLane = laneStandstill(bucket, behind, ofBucket, now);
  // Calls of other lanes do not stand still with this one.
  if (ofLane.waitMs > ofBucket.waitMs)
    consider(ofLane, metersForecast(bucket, needsOf(bucket, behind, []), now + ofLane.waitMs));
  const aheadHere = aheadOf(behind);
  const aheadInBucket = others.reduce((sum, { ahead }) => sum + ahead, aheadHere);
  const reopensMs = buckets.reopensInMs(bucket, aheadInBucket, now) - ofBucket.waitMs;
  if (reopensMs > 0) consider(ofBucket, { waitMs: reopensMs, heldBy: 'requests' });
  for (const [places, standstill, ahead] of [
    [placesOfLane(bucket, behind), ofLane, aheadHere + firstInWorkspace(bucket, behind)],
    [placesOfBucket(bucket, now, behind.serviceMs), ofBucket, aheadInBucket],
  ] as const) {
    if (places === null) continue;
    consider(none, { waitMs: serialWaitMs(places, ahead, now), heldBy: 'serialized' });
    // The rounds after a standstill: until then the calls in flight have ended.
    const waitMs = Math.floor(ahead / places.maxInFlight) * places.serviceMs;
    if (standstill.waitMs > 0) consider(standstill, { waitMs, heldBy: 'serialized' });
  }
  return longest;
}

const none: Hold = { waitMs: 0, heldBy: 'queue' };

/** Of equal waits the first. */
const longerOf = (one: Hold, other: Hold): Hold => (other.waitMs > one.waitMs ? other : one);

/** Calls of the workspace that go before all calls of a background lane. */
const firstInWorkspace = (bucket: Bucket, { key }: LanePosition): number =>
  isBackground(key) ? (lanes.twinIn(bucket, { key })?.line.size ?? 0) : 0;

/** What holds a call to which no time can be told: a call that holds a place in flight may end at any moment. */
function heldAnyhow(bucket: Bucket, lane: Lane | undefined, now: number): HeldBy {
  const isAtCap =
    lane !== undefined && lane.maxInFlight !== null && lanes.inFlightOf(bucket, lane) >= lane.maxInFlight;
  return isAtCap || buckets.isFull(bucket, now) ? 'serialized' : 'queue';
}

// What goes first

/**
 * Of these calls so many go first. Each call of a lane has a start tag, the next one as much later as its service cost by the lane's
 * weight, and calls go in the order of their tags. So of each lane go those first whose tags are smaller, and no more than wait there or
 * than its ceiling lets go until then, each as large as the mean of its lane.
 */
interface OthersAhead extends WaitingCalls {
  readonly ahead: number;
}

function othersAhead(bucket: Bucket, { lane, key, weight, ahead, windows }: Behind): OthersAhead[] {
  if (windows === null) return [];
  const turns = buckets.turnsOf(bucket, key);
  const others: OthersAhead[] = [];
  // Whatever the turns, all others go before the background.
  const { waitingCosts: costs, waiting } = bucket;
  if (turns !== bucket && waiting > 0) others.push({ costs, calls: waiting, ahead: waiting });
  const here = lane?.line.size ?? 0;
  if (turns.waiting === here) return others;
  const first = Math.max(lane?.start ?? 0, turns.virtual);
  const own = lane === undefined || here === 0 ? 0 : ahead * meanServiceOf(bucket, lane);
  const start = first + own / weight;
  for (const other of bucket.lanes.values()) {
    const { size: calls } = other.line;
    const from = Math.max(other.start, turns.virtual);
    if (calls === 0 || other.key === key || start < from || buckets.turnsOf(bucket, other.key) !== turns)
      continue;
    const shares = ((start - from) * other.weight) / meanServiceOf(bucket, other);
    // A lane that sleeps counts once its share is over, for it may sleep longer than this call waits.
    const byTurns =
      other.readyAs === null
        ? Math.floor(shares + lanes.rounding)
        : lanes.turnsBefore(shares, other.key < key);
    const most = other.perMinute === null ? calls : Math.min(calls, other.perMinute * windows);
    others.push({ costs: other.waitingCosts, calls, ahead: Math.min(most, byTurns) });
  }
  return others;
}

const meanServiceOf = (bucket: Bucket, { waitingCosts: costs, line }: Lane): number =>
  buckets.meanServiceCost(bucket, { costs, calls: line.size });

/** What the call takes from each meter, and what goes before it: calls of its lane, and these of other lanes. */
function needsOf(bucket: Bucket, behind: Behind, others: readonly OthersAhead[]): Needed[] {
  const { costs, document, reserved } = behind;
  const inLane = costsAhead(bucket, behind);
  const needs: Needed[] = [];
  for (const name of meters.meterNames) {
    if (name === 'cost' && document !== null && bucket.unseenPoints === null) continue;
    const units = costs[name] ?? 0;
    // Calls ahead in the lane count whatever meters they take from; calls of other lanes only where this call or one of these takes from it.
    let ahead = buckets.waitingUnits(bucket, inLane, name) + (reserved?.units.get(name) ?? 0);
    if (units + ahead <= 0) continue;
    // Each at most the limit, which may have become known after they entered.
    const limit = bucket.meters.get(name)?.limit ?? 0;
    for (const other of others)
      if (other.ahead > 0)
        ahead += other.ahead * Math.min(buckets.waitingUnits(bucket, other.costs, name) / other.calls, limit);
    needs.push({ name, units, ahead });
  }
  return needs;
}

/** What the calls ahead in the same lane take: of few calls each as it is, of more their mean. */
function costsAhead(bucket: Bucket, { lane, ahead }: LanePosition): ReadonlyMap<MeterName, number> {
  const sums = new Map<MeterName, number>();
  const waiting = lane?.line.size ?? 0;
  if (lane === undefined || waiting === 0 || ahead <= 0) return sums;
  if (ahead <= maxRead && lane.callers === null) {
    for (const id of lane.line.names(ahead)) {
      const ticket = bucket.tickets.get(id);
      if (ticket !== undefined) buckets.addCosts(sums, buckets.cappedCosts(bucket, ticket.costs));
    }
    return sums;
  }
  for (const [name, units] of lane.waitingCosts) {
    const limit = bucket.meters.get(name)?.limit ?? units;
    sums.set(name, Math.min((units * ahead) / waiting, ahead * limit));
  }
  return sums;
}

// Meters: how long a call waits for them when so many units go before it, from a given time on

/** Units of one meter: those of the call itself, and those of the calls that go first. */
interface Needed {
  readonly name: MeterName;
  readonly units: number;
  readonly ahead: number;
}

/** What refusals name when this meter is full. */
const heldByMeter: Readonly<Record<MeterName, HeldBy>> = {
  requests: 'requests',
  images: 'requests',
  requests_burst: 'requests',
  requests_hour: 'requests',
  tokens: 'tokens',
  input_tokens: 'tokens',
  output_tokens: 'tokens',
  requests_day: 'upstream_day',
  tokens_day: 'upstream_day',
  cost: 'cost',
};

/** The longest wait for any meter, if nobody takes from them before `from`; its milliseconds count from then on. */
function metersForecast(bucket: Bucket, needs: readonly Needed[], from: number): Hold {
  let longest = none;
  for (const need of needs)
    longest = longerOf(longest, { waitMs: drainMs(bucket, need, from), heldBy: heldByMeter[need.name] });
  if (!needs.some(({ name }) => (bucket.meters.get(name)?.log ?? null) !== null)) return longest;
  const windows = needs.flatMap((need): NeededWindow[] => {
    const meter = bucket.meters.get(need.name);
    if (meter === undefined || !meters.callWindows.includes(need.name)) return [];
    const waitMs = (fewer: number): number =>
      drainMs(bucket, { ...need, ahead: Math.max(0, need.ahead - fewer) }, from);
    return [{ meter, units: need.units + need.ahead, waitMs }];
  });
  if (windows.length <= 1) return longest;
  const byLength = windows.toSorted((one, other) => one.meter.windowMs - other.meter.windowMs);
  return longerOf(longest, { waitMs: nestedWaitMs(byLength, 0, from), heldBy: 'requests' });
}

/** Milliseconds until the meter has room for the call and for everything that goes first. */
function drainMs(bucket: Bucket, { name, units, ahead }: Needed, from: number): number {
  const meter = bucket.meters.get(name);
  if (meter === undefined || meter.limit === null) return 0;
  if (meter.log !== null) return meters.windowWaitMs(meter, units + ahead, from);
  const ownMs = meters.roomInMs(meter, units, bucket.waitingCosts.get(name) ?? 0, from);
  // Waiting calls use up what is kept free for others by the time the last of them leaves, so it is not subtracted here.
  const over = meters.levelAt(meter, from) + (units + ahead) - (meter.limit - meters.keptFree(meter, 0));
  return ahead > 0 ? Math.max(ownMs, meters.restMs(meter, from) + over / meters.netRate(meter)) : ownMs;
}

// Where several windows of one upstream count a call: a window that opens does not let everybody go at once who waits for it, because the
// shorter windows in it go on counting.

interface NeededWindow {
  readonly meter: Meter;
  /** Units of the call and of all that go before it. */
  readonly units: number;
  /** The wait for this window alone, if so many units fewer go before. Milliseconds. */
  readonly waitMs: (fewer: number) => number;
}

/** The wait for all of these windows together, shortest first, if so many units fewer go before. Milliseconds. */
function nestedWaitMs(windows: readonly NeededWindow[], fewer: number, now: number): number {
  const longest = windows.at(-1);
  if (longest === undefined) return 0;
  const shorter = windows.slice(0, -1);
  const { meter, waitMs } = longest;
  const { log, limit } = meter;
  const aloneMs = waitMs(fewer);
  const waitsMs = Math.max(aloneMs, nestedWaitMs(shorter, fewer, now));
  if (log === null || limit === null || shorter.length === 0) return waitsMs;
  const units = longest.units - fewer;
  if (log.counts === 'fixed') {
    const beyond = units - Math.max(0, limit - meters.loggedUnits(log, now));
    if (beyond <= 0) return waitsMs;
    const inWindow = beyond - (Math.ceil(beyond / limit) - 1) * limit;
    return Math.max(waitsMs, aloneMs + Math.max(...shorter.map((each) => fromEmptyMs(each.meter, inWindow))));
  }
  // Each call of a rolling window goes one window after the one that is a whole limit before it, and that one went by the shorter windows.
  const rounds = Math.ceil(units / limit) - 1;
  if (rounds <= 0) return waitsMs;
  const before = fewer + rounds * limit;
  const firstMs = Math.max(waitMs(before), nestedWaitMs(shorter, before, now));
  return Math.max(waitsMs, rounds * meters.periodMs(meter) + firstMs);
}

/** When the last of so many units leaves through a window in which nothing is counted yet. Milliseconds. */
function fromEmptyMs(meter: Meter, units: number): number {
  const { log, limit, windowMs } = meter;
  if (limit === null) return 0;
  if (log === null) return (Math.max(0, units - limit) * windowMs) / limit;
  return (Math.ceil(units / limit) - 1) * meters.periodMs(meter);
}

// Standstills: how long nobody at all can leave a bucket or a lane, however much room there is. Nothing is taken from the meters meanwhile, so
// that the calls of a line begin to take their turns only afterwards.

/**
 * What refusals name when the lane sleeps for this reason; of equal waits, the first in this order. In a back-off the upstream is closed for
 * this lane alone.
 */
const heldBySleep = [
  ['ceiling_minute', 'ceiling_minute'],
  ['ceiling_day', 'ceiling_day'],
  ['backoff', 'closed'],
] as const satisfies readonly (readonly [SleepReason, HeldBy])[];

/** Until the first call of the bucket can leave. */
function bucketStandstill(bucket: Bucket, now: number): Hold {
  const closed: Hold = { waitMs: buckets.closedMs(bucket, now), heldBy: 'closed' };
  return longerOf(closed, placesStandstill(bucket, placesOfBucket(bucket, now), now));
}

/** Until the first call of the lane can leave: its bucket's standstill, or its own if that is longer. */
function laneStandstill(bucket: Bucket, position: LanePosition, ofBucket: Hold, now: number): Hold {
  let longest = ofBucket;
  for (const [reason, heldBy] of heldBySleep)
    longest = longerOf(longest, { waitMs: (position.lane?.asleep.get(reason) ?? now) - now, heldBy });
  return longerOf(longest, placesStandstill(bucket, placesOfLane(bucket, position), now));
}

/**
 * While calls of unknown fate hold all places, or may, as other replicas have not told of theirs and nobody will say sooner that there
 * are none.
 */
function placesStandstill({ withheld }: Bucket, places: Places | null, now: number): Hold {
  if (places === null) return { waitMs: 0, heldBy: 'serialized' };
  const { abandoned, maxInFlight } = places;
  const heldUntil = abandoned[abandoned.length - maxInFlight] ?? now;
  const withheldUntil = withheld?.what === 'capped_lanes_alone' ? withheld.until : now;
  return { waitMs: Math.max(0, heldUntil - now, withheldUntil - now), heldBy: 'serialized' };
}

/** What comes after a standstill adds to it; what takes longer is named. */
const afterStandstill = (standstill: Hold, then: Hold): Hold => ({
  waitMs: standstill.waitMs + then.waitMs,
  heldBy: longerOf(standstill, then).heldBy,
});

/** The places in flight of a lane or of a bucket. */
interface Places {
  readonly maxInFlight: number;
  readonly inFlight: number;
  /** When the places come back that calls of unknown fate hold, soonest first; these are counted in `inFlight`. */
  readonly abandoned: readonly number[];
  /** Mean time that a call holds a place, milliseconds. */
  readonly serviceMs: number;
  /** When a call was last granted, whether it is in flight still or not. */
  readonly grantedAt: number | null;
}

const abandonedOf = (leases: readonly Lease[]): readonly number[] =>
  leases
    .flatMap(({ stage, expiresAt }) => (stage === 'abandoned' ? [expiresAt] : []))
    .toSorted((one, other) => one - other);

/** `null`: the lane has no cap. */
function placesOfLane(
  bucket: Bucket,
  { key, lane, maxInFlight, serviceMs = 0 }: LanePosition,
): Places | null {
  if (maxInFlight === null) return null;
  const own = [lane, lanes.twinIn(bucket, { key })].flatMap((one) => one ?? []);
  const tokens = own.flatMap((one) => [...one.leases]);
  const leases = tokens.flatMap((token) => bucket.leases.get(token) ?? []);
  const grants = own.flatMap(({ grantedAt }) => grantedAt ?? []);
  return {
    maxInFlight,
    inFlight: leases.length,
    abandoned: abandonedOf(leases),
    serviceMs: Math.max(serviceMs, ...own.map((one) => one.serviceMs)),
    grantedAt: grants.length === 0 ? null : Math.max(...grants),
  };
}

/** `null`: the bucket has no cap. */
function placesOfBucket(bucket: Bucket, now: number, knownMs = 0): Places | null {
  const { leases, lastGrantAt: grantedAt } = bucket;
  const maxInFlight = buckets.maxInFlightOf(bucket, now);
  if (maxInFlight === null) return null;
  const serviceMs = Math.max(bucket.serviceMs, knownMs);
  const abandoned = abandonedOf([...leases.values()]);
  return { maxInFlight, inFlight: leases.size, abandoned, serviceMs, grantedAt };
}

/**
 * Where there is a cap, calls are served in rounds of `maxInFlight`. A round under way counts as half over. Once it takes longer than
 * usual, it is expected to take as much longer again as it is late already.
 */
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

// Tickets

/** Where a ticket stands; `null` if it does not wait. */
export function positionOf(bucket: Bucket, id: TicketId, serviceMs = 0): LanePosition | null {
  const ticket = bucket.tickets.get(id);
  if (ticket?.lease !== null) return null;
  const lane = buckets.laneOf(bucket, ticket);
  const { key, weight, maxInFlight, perMinute } = lane;
  const { document, order, reservation } = ticket;
  const costs = buckets.knownCosts(bucket, ticket.costs, document);
  const ahead = lanes.callsAhead(bucket, lane, ticket);
  const own = reservation?.id ?? null;
  return { lane, key, costs, document, weight, maxInFlight, perMinute, ahead, order, own, serviceMs };
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

/** What the first waiting ticket of a lane waits for; `null` if none waits. */
export function forecastFirst(bucket: Bucket, key: LaneKey, now: number): Hold | null {
  const lane = bucket.lanes.get(key);
  const first = lane === undefined ? undefined : lanes.firstIn(lane);
  const position = first === undefined ? null : positionOf(bucket, first);
  return position === null ? null : forecastAt(bucket, position, now);
}
