/**
 * How long a call at a given position of a lane will wait, from what the bucket knows now. It is the time given to a client
 * when it is refused at once, so it must be neither hopeful nor gloomy: the time at which every meter has drained
 * enough for the calls that go first and this one, not before the bucket opens or the lane wakes, and for lanes with
 * a cap on calls in flight not before those in flight and ahead have been served. A place that a call of unknown fate
 * keeps taken is free again when its lease ends, and not before.
 *
 * Other lanes are counted by what they may take until it is this call's turn: that time times their weight, in calls as
 * large as those they have waiting; at least one for each lane whose head is in front now, and never more than wait.
 */
import type { Costs, MeterName } from '../../call.ts';
import type { HeldBy } from '../../errors.ts';
import { closedMs, meterOf, type Bucket, type Lane } from './bucket-state.policy.ts';
import { meterNames } from './meter-names.policy.ts';
import { ceilingWindowMs } from './ceiling.policy.ts';
import { serviceCost } from './waiting-costs.policy.ts';
import type { LaneKey, TicketId } from '../../ids.ts';
import type { SleepReason, WaitForecast } from '../limiter.ts';
import { keptFree, netRate } from './meter-others.policy.ts';
import { levelAt, restMs, roomInMs } from './meter.policy.ts';
import { windowWaitMs } from './window-log.policy.ts';

/** In the order in which equal waits are named. */
const sleepReasons = ['ceiling_minute', 'ceiling_day', 'backoff'] as const satisfies readonly SleepReason[];

/** A ceiling is looked ahead no further than this many windows: no call may wait longer. */
export const maxWindows = 10;

/** A whole number of calls, but for the rounding of a division. */
const rounding = 1e-9;

/** Where a call stands, or would stand, in its lane. */
export interface LanePosition {
  /** `undefined`: of a workspace that has nothing in this bucket yet. */
  readonly lane: Lane | undefined;
  /** Of its lane. */
  readonly key: LaneKey;
  readonly costs: Costs;
  readonly weight: number;
  readonly maxInFlight: number | null;
  /** Of the workspace's ceiling; `null` = it has none. */
  readonly perMinute: number | null;
  /** Tickets of the same lane that go first. */
  readonly ahead: number;
}

export interface Forecast {
  readonly waitMs: number;
  /** What the longest wait comes from; where there is none, the line. */
  readonly heldBy: HeldBy;
}

/** What a sleeping lane's refusals name. A back-off is a time that the upstream closed for this lane alone. */
const heldBySleep: Readonly<Record<(typeof sleepReasons)[number], HeldBy>> = {
  ceiling_minute: 'ceiling_minute',
  ceiling_day: 'ceiling_day',
  backoff: 'closed',
};

/** What a full meter's refusals name. */
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

/** The expected wait of a call at this position. */
export function forecastAt(bucket: Bucket, position: LanePosition, now: number): Forecast {
  let longest = bucketForecast(bucket, position, now);
  const { perMinute } = position;
  if (perMinute === null) return longest;
  // A call leaves one window of its ceiling after the call that takes the same slot before it.
  for (let windows = 1; windows <= maxWindows && windows * perMinute <= position.ahead; windows += 1) {
    const before = { ...position, ahead: position.ahead - windows * perMinute };
    const waitMs = bucketForecast(bucket, before, now).waitMs + windows * ceilingWindowMs;
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy: 'ceiling_minute' };
  }
  return longest;
}

/** What the bucket alone makes of the position, whatever the workspace's ceiling allows. */
function bucketForecast(bucket: Bucket, position: LanePosition, now: number): Forecast {
  const { lane, costs } = position;
  const others = othersAhead(bucket, position);
  // When the answer comes that a document waits for is not known: it may come at once, and refuses nobody.
  let longest: Forecast = { waitMs: 0, heldBy: lane?.asleep.has('document') === true ? 'cost' : 'queue' };
  const consider = (waitMs: number, heldBy: HeldBy): void => {
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy };
  };
  consider(closedMs(bucket, now), 'closed');
  for (const reason of sleepReasons) {
    const until = lane?.asleep.get(reason);
    if (until !== undefined) consider(until - now, heldBySleep[reason]);
  }
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    // Whoever goes first in the lane is waited for, whatever it takes; calls of other lanes only for what both take.
    const own = ownCostAhead(bucket, position, name);
    const ahead = units > 0 ? own + costElsewhere(bucket, { lane, others }, name) : own;
    if (units + ahead > 0) consider(drainFor(bucket, { name, units, ahead }, now), heldByMeter[name]);
  }
  consider(serialWaitMs(position, now), 'serialized');
  return longest;
}

/** Calls of other lanes expected to go before the position. */
function othersAhead(bucket: Bucket, { lane, key, weight, ahead }: LanePosition): number {
  const waitingHere = lane?.line.size ?? 0;
  const waitingElsewhere = bucket.waiting - waitingHere;
  if (waitingElsewhere <= 0) return 0;
  const weightElsewhere = bucket.waitingWeight - (waitingHere > 0 ? (lane?.weight ?? 0) : 0);
  const costsHere = lane?.waitingCosts ?? null;
  const here =
    ahead > 0 && waitingHere > 0
      ? meanServiceCost(bucket, { costs: costsHere, without: null, calls: waitingHere })
      : 0;
  const from = Math.max(lane?.start ?? 0, bucket.virtual);
  const start = from + (ahead * here) / weight;
  const line = { costs: bucket.waitingCosts, without: costsHere, calls: waitingElsewhere };
  const elsewhere = meanServiceCost(bucket, line);
  const byShare = Math.floor(
    ((start - bucket.virtual) * Math.max(0, weightElsewhere)) / elsewhere + rounding,
  );
  const own = lane !== undefined && lane.readyAs !== null && lane.start < start ? 1 : 0;
  return Math.min(waitingElsewhere, Math.max(byShare, lanesBefore(bucket, start, key) - own));
}

/** Lanes in the running whose turn is before that of a lane of this name that starts then. */
function lanesBefore(bucket: Bucket, start: number, key: LaneKey): number {
  let before = 0;
  for (const lanes of bucket.ready.values()) before += lanes.before(start, key);
  return before;
}

/** Calls that wait, and what they cost in all: `costs` without those that are counted in `without`. */
interface WaitingCalls {
  readonly costs: ReadonlyMap<MeterName, number> | null;
  readonly without: ReadonlyMap<MeterName, number> | null;
  readonly calls: number;
}

function meanServiceCost(bucket: Bucket, { costs, without, calls }: WaitingCalls): number {
  const mean: Partial<Record<MeterName, number>> = {};
  for (const [name, units] of costs ?? []) mean[name] = (units - (without?.get(name) ?? 0)) / calls;
  return serviceCost(bucket, mean);
}

/** What `others` calls of other lanes take, on an average. No call takes more than the limit, which may have become known later. */
function costElsewhere(
  bucket: Bucket,
  { lane, others }: { readonly lane: Lane | undefined; readonly others: number },
  name: MeterName,
): number {
  const limit = bucket.meters.get(name)?.limit ?? 0;
  const waitingElsewhere = bucket.waiting - (lane?.line.size ?? 0);
  if (waitingElsewhere <= 0) return 0;
  const cost = (bucket.waitingCosts.get(name) ?? 0) - (lane?.waitingCosts.get(name) ?? 0);
  return Math.min((cost * others) / waitingElsewhere, others * limit);
}

/** What the calls of the same lane that go first take, on an average. */
function ownCostAhead(bucket: Bucket, { lane, ahead }: LanePosition, name: MeterName): number {
  const waitingHere = lane?.line.size ?? 0;
  if (lane === undefined || waitingHere === 0) return 0;
  const limit = bucket.meters.get(name)?.limit ?? 0;
  return Math.min(((lane.waitingCosts.get(name) ?? 0) * ahead) / waitingHere, ahead * limit);
}

/** Units of one meter that a call takes, and that go first. */
interface Needed {
  readonly name: MeterName;
  readonly units: number;
  readonly ahead: number;
}

/** Room for the call itself, plus the draining time of everything that goes first. */
function drainFor(bucket: Bucket, { name, units, ahead }: Needed, now: number): number {
  const meter = meterOf(bucket, name, now);
  if (meter.limit === null) return 0;
  if (meter.log !== null) return windowWaitMs(meter, units + ahead, now);
  const waiting = bucket.waitingCosts.get(name) ?? 0;
  const ownMs = roomInMs(meter, { units, waiting }, now);
  // What is kept free for others while calls wait is used up by the last of them.
  const over = levelAt(meter, now) + (units + ahead) - (meter.limit - keptFree(meter, 0));
  return ahead > 0 ? Math.max(ownMs, restMs(meter, now) + over / netRate(meter)) : ownMs;
}

/**
 * A capped lane serves one round after the other. The round under way, if there is one, counts half; one that takes
 * longer than usual is expected to last as long again as it is late.
 */
function serialWaitMs({ lane, maxInFlight, ahead }: LanePosition, now: number): number {
  if (lane === undefined || maxInFlight === null) return 0;
  const { serviceMs, abandoned } = lane;
  const standsUntil = abandoned[abandoned.length - maxInFlight];
  if (standsUntil !== undefined) {
    return Math.max(0, standsUntil - now) + Math.floor(ahead / maxInFlight) * serviceMs;
  }
  const served = lane.inFlight - abandoned.length;
  const rounds = Math.floor((ahead + served) / (maxInFlight - abandoned.length));
  if (rounds < 1) return 0;
  if (served === 0 || lane.grantedAt === null) return rounds * serviceMs;
  const underWayMs = Math.max(serviceMs / 2, now - lane.grantedAt - serviceMs);
  return underWayMs + (rounds - 1) * serviceMs;
}

/** Expected wait of a waiting ticket, what it waits for, and how many of its lane go first; `null` if it does not wait. */
export function forecast(bucket: Bucket, id: TicketId, now: number): WaitForecast | null {
  const ticket = bucket.tickets.get(id);
  if (ticket === undefined || ticket.lease !== null) return null;
  const lane = bucket.lanes.get(ticket.lane);
  if (lane === undefined) return null;
  const ahead = lane.line.rank(ticket.id, ticket.order);
  const position = {
    lane,
    key: lane.key,
    costs: ticket.costs,
    weight: lane.weight,
    maxInFlight: lane.maxInFlight,
    perMinute: lane.perMinute,
    ahead,
  };
  return { ...forecastAt(bucket, position, now), ahead };
}
