/**
 * Lanes of a bucket: entering and leaving the line, falling asleep and waking, and the one decision whether a lane is
 * in the running. Part of the specification in `scheduler.policy.ts`.
 */
import type { Costs, MeterName } from '../call.ts';
import { costEntries, type Bucket, type Lane, type Lease, type Ticket } from './bucket-state.policy.ts';
import type { Admission } from './limiter.ts';
import { SortedNames } from './sorted.policy.ts';

/** What one pump may still do: sweeping, waking, passing over and granting count one each. */
export interface Budget {
  left: number;
}

export function laneFor(bucket: Bucket, admission: Admission): Lane {
  let lane = bucket.lanes.get(admission.lane);
  if (lane === undefined) {
    lane = {
      key: admission.lane,
      weight: admission.weight,
      maxInFlight: admission.maxInFlight,
      start: bucket.virtual,
      inFlight: 0,
      line: new SortedNames(),
      waitingCosts: new Map(),
      asleepUntil: 0,
      places: null,
      unconfirmed: 0,
      serviceMs: 0,
      grantedAt: -1,
      abandoned: [],
      readyAs: null,
    };
    bucket.lanes.set(admission.lane, lane);
  }
  if (lane.weight !== admission.weight) {
    if (lane.line.size > 0) bucket.waitingWeight += admission.weight - lane.weight;
    lane.weight = admission.weight;
  }
  lane.maxInFlight = admission.maxInFlight;
  return lane;
}

/**
 * What a call can take: of each meter no more than its limit, as far as one is known. It asks for what its client wrote
 * into it (`max_tokens`), and what everybody else of the bucket is told rests on the sum of what waits.
 */
export function takeable(bucket: Bucket, asked: Costs): Costs {
  const costs: Partial<Record<MeterName, number>> = {};
  for (const [name, units] of costEntries(asked)) {
    const limit = bucket.meters.get(name)?.limit ?? 0;
    costs[name] = limit > 0 ? Math.min(units, limit) : units;
  }
  return costs;
}

/**
 * How much of its lane's turn a call takes: the time for which it keeps its dearest meter busy, in milliseconds (dominant
 * share; Ghodsi et al. 2011). A day is no rate and does not count; where no limit is known every call takes 1. At most one
 * window, whatever is asked: a lane whose limits change has never more than that to wait for.
 */
export function turnOf(bucket: Bucket, costs: Costs): number {
  let longest = 0;
  for (const [name, units] of costEntries(costs)) {
    const meter = bucket.meters.get(name);
    if (meter === undefined || meter.limit === null || name.endsWith('_day')) continue;
    longest = Math.max(longest, (Math.min(units, meter.limit) * meter.windowMs) / meter.limit);
  }
  return longest > 0 ? longest : 1;
}

export function enqueue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  if (lane.line.size === 0) bucket.waitingWeight += lane.weight;
  lane.line.set(ticket.id, ticket.order);
  bucket.waiting += 1;
  for (const [name, units] of costEntries(ticket.costs)) {
    lane.waitingCosts.set(name, (lane.waitingCosts.get(name) ?? 0) + units);
    bucket.waitingCosts.set(name, (bucket.waitingCosts.get(name) ?? 0) + units);
  }
  refreshReadiness(bucket, lane);
}

export function dequeue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  if (!lane.line.delete(ticket.id)) return;
  bucket.waiting -= 1;
  if (lane.line.size === 0) bucket.waitingWeight -= lane.weight;
  for (const [name, units] of costEntries(ticket.costs)) {
    lane.waitingCosts.set(name, (lane.waitingCosts.get(name) ?? 0) - units);
    bucket.waitingCosts.set(name, (bucket.waitingCosts.get(name) ?? 0) - units);
  }
  refreshReadiness(bucket, lane);
}

export function confirm(lane: Lane, lease: Lease): void {
  if (!lease.unconfirmed) return;
  lease.unconfirmed = false;
  lane.unconfirmed -= 1;
}

export function sleep(bucket: Bucket, lane: Lane, until: number): void {
  lane.asleepUntil = Math.max(lane.asleepUntil, until);
  bucket.asleep.set(lane.key, lane.asleepUntil);
  refreshReadiness(bucket, lane);
}

/** Puts the lane into the ready set of its head's class, or takes it out. The one place that decides readiness. */
export function refreshReadiness(bucket: Bucket, lane: Lane): void {
  const head = bucket.tickets.get(lane.line.first()?.name ?? '');
  const ready =
    head !== undefined &&
    lane.asleepUntil === 0 &&
    (lane.maxInFlight === null || lane.inFlight < lane.maxInFlight) &&
    (lane.places === null || lane.unconfirmed < Math.max(1, lane.places));
  const readyAs = ready ? head.callClass : null;
  if (lane.readyAs === null) lane.start = Math.max(lane.start, bucket.virtual);
  if (lane.readyAs !== null && lane.readyAs !== readyAs) bucket.ready.get(lane.readyAs)?.delete(lane.key);
  lane.readyAs = readyAs;
  if (lane.line.size === 0 && lane.inFlight === 0 && lane.asleepUntil === 0) {
    bucket.idle.set(lane.key, lane.start);
  } else {
    bucket.idle.delete(lane.key);
  }
  if (readyAs === null) return;
  let lanes = bucket.ready.get(readyAs);
  if (lanes === undefined) {
    lanes = new SortedNames();
    bucket.ready.set(readyAs, lanes);
  }
  lanes.set(lane.key, lane.start);
}

/** Forgets lanes that a newcomer would equal, at most `most` of them. */
export function forgetIdleLanes(bucket: Bucket, most: number): void {
  for (let left = most; left > 0; left -= 1) {
    const first = bucket.idle.first();
    if (first === undefined || first.score > bucket.virtual) return;
    bucket.idle.delete(first.name);
    bucket.lanes.delete(first.name);
  }
}

/** Wakes lanes whose time has come, as far as the budget goes. */
export function wakeLanes(bucket: Bucket, budget: Budget, now: number): void {
  for (
    let first = bucket.asleep.first();
    first !== undefined && first.score <= now && budget.left > 0;
    first = bucket.asleep.first()
  ) {
    budget.left -= 1;
    bucket.asleep.delete(first.name);
    const lane = bucket.lanes.get(first.name);
    if (lane === undefined) continue;
    lane.asleepUntil = 0;
    if (lane.places !== null) lane.places = Math.max(1, lane.places);
    refreshReadiness(bucket, lane);
  }
}
