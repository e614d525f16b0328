/**
 * How long a call at a given position of a lane will wait, from what the bucket knows now. A client that is refused at once is
 * given this time, so it must be neither too short nor too long. The call can leave when
 * - every meter has drained enough for this call and for the calls that go first,
 * - the bucket is open and the lane awake; the calls that go first leave only from then on,
 * - in a lane with a cap on calls in flight, the calls in flight and ahead have been served. A call of unknown fate counts as in
 *   flight until its lease ends.
 *
 * Calls of other lanes go first in proportion to their lanes' weights, each as large as the mean of those that wait there: at least
 * one call for each lane that is in front of this one now, and never more calls than wait.
 */
import type { Costs, MeterName } from '../../call.ts';
import type { LaneKey, TicketId } from '../../ids.ts';
import type { WaitForecast } from '../limiter.ts';
import type { Bucket, Lane } from './bucket-state.policy.ts';
import { ceilingWindowMs } from './ceiling.policy.ts';
import { knownCosts } from './documents.policy.ts';
import { metersForecast, type Forecast, type Needed } from './forecast-meters.policy.ts';
import { meterNames } from './meter-names.policy.ts';
import {
  afterStandstill,
  bucketStandstill,
  laneStandstill,
  roundsForecast,
  serialWaitMs,
} from './standstill.policy.ts';
import { serviceCost, waitingUnits } from './waiting-costs.policy.ts';

/** The forecast of a ceiling reaches this many windows ahead: no call may wait longer. */
export const maxWindows = 10;

/** Added before rounding down to whole calls, so that the error of a division loses none. */
const rounding = 1e-9;

/** Where a call stands, or would stand, in its lane. */
export interface LanePosition {
  /** `undefined`: the workspace has no lane in this bucket yet. */
  readonly lane: Lane | undefined;
  /** The lane's name, also when there is no lane yet. */
  readonly key: LaneKey;
  readonly costs: Costs;
  readonly weight: number;
  readonly maxInFlight: number | null;
  /** The workspace's ceiling; `null` = none per minute. */
  readonly perMinute: number | null;
  /** Tickets of the same lane that go first. */
  readonly ahead: number;
}

/** The expected wait of a call at this position. */
export function forecastAt(bucket: Bucket, position: LanePosition, now: number): Forecast {
  let longest = bucketForecast(bucket, position, now);
  const { perMinute } = position;
  if (perMinute === null) return longest;
  // A call leaves one window of its ceiling after the previous call that used the same slot.
  for (let windows = 1; windows <= maxWindows && windows * perMinute <= position.ahead; windows += 1) {
    const before = { ...position, ahead: position.ahead - windows * perMinute };
    const waitMs = bucketForecast(bucket, before, now).waitMs + windows * ceilingWindowMs;
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy: 'ceiling_minute' };
  }
  return longest;
}

/** The wait that the bucket alone causes, whatever the workspace's ceiling allows. */
function bucketForecast(bucket: Bucket, position: LanePosition, now: number): Forecast {
  const { lane } = position;
  // A lane that waits for a document's cost adds no time, because the response that states the cost may come at any moment.
  let longest: Forecast = { waitMs: 0, heldBy: lane?.asleep.has('document') === true ? 'cost' : 'queue' };
  const consider = ({ waitMs, heldBy }: Forecast): void => {
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy };
  };
  const ofBucket = bucketStandstill(bucket, now);
  const all = needsOf(bucket, position, othersAhead(bucket, position));
  consider(afterStandstill(ofBucket, metersForecast(bucket, all, now + ofBucket.waitMs)));
  const ofLane = laneStandstill(position, ofBucket, now);
  if (ofLane.waitMs > ofBucket.waitMs) {
    // Calls of other lanes do not stand still with this one.
    const own = needsOf(bucket, position, 0);
    consider(afterStandstill(ofLane, metersForecast(bucket, own, now + ofLane.waitMs)));
  }
  consider({ waitMs: serialWaitMs(position, now), heldBy: 'serialized' });
  if (ofLane.waitMs > 0) consider(afterStandstill(ofLane, roundsForecast(position, position.ahead)));
  return longest;
}

/** What the call takes from each meter, and what goes before it: calls of its lane, and so many of other lanes. */
function needsOf(bucket: Bucket, position: LanePosition, others: number): Needed[] {
  const { lane, costs } = position;
  const needs: Needed[] = [];
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    // Calls ahead in the lane count whatever meters they take from; calls of other lanes only where this call takes from it too.
    const own = ownCostAhead(bucket, position, name);
    const ahead = units > 0 ? own + costElsewhere(bucket, { lane, others }, name) : own;
    if (units + ahead > 0) needs.push({ name, units, ahead });
  }
  return needs;
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

/** Ready lanes that are served before a lane of this name whose virtual start is `start`. */
function lanesBefore(bucket: Bucket, start: number, key: LaneKey): number {
  let before = 0;
  for (const lanes of bucket.ready.values()) before += lanes.before(start, key);
  return before;
}

/** Waiting calls and their total costs: `costs` minus `without`. */
interface WaitingCalls {
  readonly costs: ReadonlyMap<MeterName, number> | null;
  readonly without: ReadonlyMap<MeterName, number> | null;
  readonly calls: number;
}

function meanServiceCost(bucket: Bucket, { costs, without, calls }: WaitingCalls): number {
  const mean: Partial<Record<MeterName, number>> = {};
  for (const name of meterNames) {
    const units = waitingUnits(bucket, costs, name);
    if (units > 0) mean[name] = (units - waitingUnits(bucket, without, name)) / calls;
  }
  return serviceCost(bucket, mean);
}

/** Mean units that `others` calls of other lanes take, each at most the limit, which may have become known after they entered. */
function costElsewhere(
  bucket: Bucket,
  { lane, others }: { readonly lane: Lane | undefined; readonly others: number },
  name: MeterName,
): number {
  const limit = bucket.meters.get(name)?.limit ?? 0;
  const waitingElsewhere = bucket.waiting - (lane?.line.size ?? 0);
  if (waitingElsewhere <= 0) return 0;
  const cost =
    waitingUnits(bucket, bucket.waitingCosts, name) - waitingUnits(bucket, lane?.waitingCosts ?? null, name);
  return Math.min((cost * others) / waitingElsewhere, others * limit);
}

/** Mean units that the calls ahead in the same lane take. */
function ownCostAhead(bucket: Bucket, { lane, ahead }: LanePosition, name: MeterName): number {
  const waitingHere = lane?.line.size ?? 0;
  if (lane === undefined || waitingHere === 0) return 0;
  const limit = bucket.meters.get(name)?.limit ?? 0;
  return Math.min((waitingUnits(bucket, lane.waitingCosts, name) * ahead) / waitingHere, ahead * limit);
}

/** Expected wait of a ticket, what it waits for, and how many tickets of its lane go first; `null` if the ticket does not wait. */
export function forecast(bucket: Bucket, id: TicketId, now: number): WaitForecast | null {
  const ticket = bucket.tickets.get(id);
  if (ticket === undefined || ticket.lease !== null) return null;
  const lane = bucket.lanes.get(ticket.lane);
  if (lane === undefined) return null;
  const ahead = lane.line.rank(ticket.id, ticket.order);
  const position = {
    lane,
    key: lane.key,
    costs: knownCosts(bucket, ticket.costs, ticket.document),
    weight: lane.weight,
    maxInFlight: lane.maxInFlight,
    perMinute: lane.perMinute,
    ahead,
  };
  return { ...forecastAt(bucket, position, now), ahead };
}
