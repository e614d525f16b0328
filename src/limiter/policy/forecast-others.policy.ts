/**
 * How many calls of other lanes go before a position of a lane. Part of the specification in `scheduler.policy.ts`.
 *
 * Each call of a lane has a start tag, the next one as much later as its service cost by the lane's weight, and calls go in the order
 * of their tags. So of each lane go those first whose tags are smaller, and no more than wait there or than its ceiling lets go
 * until then, each as large as the mean of its lane. At most `maxLanes` lanes are read: the ready ones in their order, then those
 * that wake first. All others, and those that have no place in flight left, count as one lane that has all their calls and the sum
 * of their weights.
 */
import type { Costs, MeterName } from '../../call.ts';
import type { LaneKey, TicketId } from '../../ids.ts';
import { turnsOf, type Bucket, type Lane, type Turns } from './bucket-state.policy.ts';
import { turnsBefore } from './callers.policy.ts';
import { meanServiceCost, waitingUnits, type WaitingCalls } from './waiting-costs.policy.ts';

/** A forecast reads this many lanes one by one: each costs Redis some microseconds. */
export const maxLanes = 32;

/** Less than this part of a call is the error of a division. */
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
  /** As of a ticket: reservations of its lane that come later do not go before it. */
  readonly order: number;
  /** What is kept for the call itself; `null` = nothing. */
  readonly own: TicketId | null;
  /** How long calls are known to take beside what those of the bucket have taken, milliseconds. Absent: nothing is known. */
  readonly serviceMs?: number;
}

/** Of these calls so many go first. */
export interface OthersAhead extends WaitingCalls {
  readonly ahead: number;
}

/** A lane that is read by itself; `service`: mean service cost of its calls. */
interface OtherLane extends WaitingCalls {
  readonly lane: Lane;
  readonly service: number;
}

/** What waits in other lanes than that of a position. */
export interface Elsewhere {
  readonly lanes: readonly OtherLane[];
  readonly rest: WaitingCalls & { readonly weight: number };
  /** Those that go first whatever the turns: all others before the background. `null` = none do. */
  readonly first: WaitingCalls | null;
  /** Whether lanes of the rest may be ready. */
  readonly isCut: boolean;
  /** The position leaves within so many windows of the ceilings, and no lane sends more than its own ceiling allows in these. */
  readonly windows: number;
}

/** The calls of other lanes in sum, which costs little; `null`: none wait. */
export function inSum(bucket: Bucket, { lane, key }: LanePosition): Elsewhere | null {
  const turns = turnsOf(bucket, key);
  const waitingHere = lane?.line.size ?? 0;
  const calls = turns.waiting - waitingHere;
  const first =
    turns === bucket || bucket.waiting === 0 ? null : { costs: bucket.waitingCosts, calls: bucket.waiting };
  if (calls <= 0 && first === null) return null;
  const costs = new Map(turns.waitingCosts);
  subtract(costs, lane?.waitingCosts);
  const weight = turns.waitingWeight - (waitingHere > 0 ? (lane?.weight ?? 0) : 0);
  return { lanes: [], rest: { costs, calls, weight }, first, isCut: true, windows: Infinity };
}

/**
 * The same lane by lane, for a position and those that are further ahead in its lane. Before the first share of any lane is over, lanes
 * differ in nothing: then it is the sum.
 */
export function laneByLane(bucket: Bucket, position: LanePosition, sum: Elsewhere | null): Elsewhere | null {
  const turns = turnsOf(bucket, position.key);
  if (sum === null || startOf(bucket, position) <= turns.virtual) return sum;
  let { calls, weight } = sum.rest;
  const costs = new Map(sum.rest.costs);
  const lanes: OtherLane[] = [];
  const read = (names: readonly LaneKey[]): void => {
    for (const name of names) {
      const lane = name === position.key ? undefined : bucket.lanes.get(name);
      if (lane === undefined || lane.line.size === 0 || turnsOf(bucket, name) !== turns) continue;
      const waiting = { costs: lane.waitingCosts, calls: lane.line.size };
      lanes.push({ ...waiting, lane, service: meanServiceCost(bucket, waiting) });
      calls -= waiting.calls;
      weight -= lane.weight;
      subtract(costs, waiting.costs);
    }
  };
  const ready = firstReady(turns, maxLanes);
  read(ready);
  if (calls > 0) read(bucket.asleep.firstNames(maxLanes - ready.length));
  return { ...sum, lanes, rest: { costs, calls, weight }, isCut: ready.length === maxLanes };
}

/** Calls of other lanes that are expected to go before the position. */
export function othersAhead(bucket: Bucket, position: LanePosition, elsewhere: Elsewhere): OthersAhead[] {
  const start = startOf(bucket, position);
  const turns = turnsOf(bucket, position.key);
  const { rest, first, windows } = elsewhere;
  let readyBefore = 0;
  const others: OthersAhead[] = elsewhere.lanes.map((other) => {
    const { perMinute } = other.lane;
    const most = perMinute === null ? Infinity : perMinute * windows;
    const ahead = Math.min(most, aheadOf(turns, other, { start, key: position.key }));
    if (other.lane.readyAs !== null && ahead > 0) readyBefore += 1;
    return { ...other, ahead };
  });
  if (first !== null) others.push({ ...first, ahead: first.calls });
  if (rest.calls <= 0) return others;
  const share = (start - turns.virtual) * Math.max(0, rest.weight);
  const byShare = Math.floor(share / meanServiceCost(bucket, rest) + rounding);
  const before = elsewhere.isCut ? lanesBefore(turns, position, start) - readyBefore : 0;
  return [...others, { ...rest, ahead: Math.min(rest.calls, Math.max(byShare, before)) }];
}

/** Units of a meter that these calls take, each at most the limit, which may have become known after they entered. */
export function unitsAhead(bucket: Bucket, others: readonly OthersAhead[], name: MeterName): number {
  const limit = bucket.meters.get(name)?.limit ?? 0;
  let units = 0;
  for (const { costs, calls, ahead } of others) {
    if (ahead > 0) units += Math.min((waitingUnits(bucket, costs, name) * ahead) / calls, ahead * limit);
  }
  return units;
}

/** The start tag of the position. */
function startOf(bucket: Bucket, { lane, key, weight, ahead }: LanePosition): number {
  const from = Math.max(lane?.start ?? 0, turnsOf(bucket, key).virtual);
  const calls = lane?.line.size ?? 0;
  if (lane === undefined || ahead <= 0 || calls === 0) return from;
  return from + (ahead * meanServiceCost(bucket, { costs: lane.waitingCosts, calls })) / weight;
}

/** How many calls of a lane go before a start tag. Of equal tags, that of the name that comes first goes first. */
function aheadOf(
  { virtual }: Turns,
  { lane, calls, service }: OtherLane,
  { start, key }: { readonly start: number; readonly key: LaneKey },
): number {
  const from = Math.max(lane.start, virtual);
  if (start < from) return 0;
  const shares = ((start - from) * lane.weight) / service;
  // A lane that sleeps counts once its share is over, for it may sleep longer than this call waits.
  if (lane.readyAs === null) return Math.min(calls, Math.floor(shares + rounding));
  return Math.min(calls, turnsBefore(shares, lane.key < key));
}

/** The first ready lanes, class by class. */
function firstReady({ ready }: Turns, most: number): LaneKey[] {
  const classes = [...ready].toSorted(([one], [other]) => (`${one}:` < `${other}:` ? -1 : 1));
  const names: LaneKey[] = [];
  for (const [, lanes] of classes) names.push(...lanes.firstNames(most - names.length));
  return names;
}

/** Ready lanes of other names that are served before a lane of this name whose start tag is `start`. */
function lanesBefore({ ready }: Turns, { lane, key }: LanePosition, start: number): number {
  let before = 0;
  for (const lanes of ready.values()) before += lanes.before(start, key);
  return lane !== undefined && lane.readyAs !== null && lane.start < start ? before - 1 : before;
}

function subtract(costs: Map<MeterName, number>, some: ReadonlyMap<MeterName, number> | undefined): void {
  for (const [name, units] of some ?? []) costs.set(name, (costs.get(name) ?? 0) - units);
}
