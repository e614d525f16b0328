/**
 * Lanes of a bucket: entering and leaving the line, falling asleep and waking, and the one decision whether a lane is
 * in the running. Part of the specification in `scheduler.policy.ts`.
 */
import { noTurns, turnsOf, type Bucket, type Lane, type Lease, type Ticket } from './bucket-state.policy.ts';
import { isBackground, twinOf, type TicketId } from '../../ids.ts';
import type { LaneCeiling, LaneKey, LaneSetting, SleepReason } from '../limiter.ts';
import { firstIn, joinCaller, leaveCaller, unnamed } from './callers.policy.ts';
import { release } from './reservations.policy.ts';
import { SortedNames } from './sorted.policy.ts';
import { addCosts, subtractCosts } from './waiting-costs.policy.ts';

/** What one pump may still do: sweeping, waking, passing over and granting count one each. */
export interface Budget {
  left: number;
}

/** The lane of this key, created when there is none, under these settings. */
export function laneFor(bucket: Bucket, key: LaneKey, setting: LaneSetting): Lane {
  let lane = bucket.lanes.get(key);
  if (lane === undefined) {
    if (isBackground(key)) bucket.background ??= { ...noTurns(), since: 0 };
    lane = {
      key,
      weight: setting.weight,
      maxInFlight: setting.maxInFlight,
      perMinute: setting.perMinute,
      ceilingTag: setting.ceilingTag,
      start: turnsOf(bucket, key).virtual,
      inFlight: 0,
      line: new SortedNames(),
      callers: null,
      waitingCosts: new Map(),
      asleep: new Map(),
      slots: null,
      unconfirmed: 0,
      serviceMs: 0,
      grantedAt: null,
      abandoned: [],
      slotBackAt: null,
      readyAs: null,
    };
    bucket.lanes.set(key, lane);
    const until = twinIn(bucket, lane)?.asleep.get('backoff');
    if (until !== undefined) fallAsleep(bucket, lane, { because: 'backoff', until });
  }
  applyLaneSetting(bucket, lane, setting);
  return lane;
}

/**
 * A change of the ceiling's limits wakes a lane that slept because of them: its next grant finds out what the new ones allow. A lane
 * without a cap does not wait for what other replicas may have under way.
 */
export function applyLaneSetting(bucket: Bucket, lane: Lane, setting: LaneSetting): void {
  lane.weight = setting.weight;
  if (lane.maxInFlight !== setting.maxInFlight) {
    lane.maxInFlight = setting.maxInFlight;
    if (lane.maxInFlight === null) wake(bucket, lane, ['term']);
    refreshReadiness(bucket, lane);
  }
  lane.perMinute = setting.perMinute;
  if (lane.ceilingTag === setting.ceilingTag) return;
  lane.ceilingTag = setting.ceilingTag;
  if (lane.slots !== null) lane.slots = Math.max(1, lane.slots);
  wake(bucket, lane, ['ceiling_minute', 'ceiling_day']);
}

/** Puts the ticket into its lane's line. A lane that sleeps for its head's document wakes when the ticket becomes its head. */
export function enqueue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  const turns = turnsOf(bucket, lane.key);
  lane.line.set(ticket.id, ticket.order);
  turns.waiting += 1;
  addCosts(bucket, lane, ticket.costs);
  joinCaller(lane, ticket);
  if (firstIn(lane) === ticket.id) wake(bucket, lane, ['document']);
  refreshReadiness(bucket, lane);
}

export function dequeue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  const wasFirst = firstIn(lane) === ticket.id;
  if (!lane.line.delete(ticket.id)) return;
  if (ticket.reservation !== undefined) release(bucket, ticket.reservation.id);
  leaveCaller(lane, ticket);
  const turns = turnsOf(bucket, lane.key);
  turns.waiting -= 1;
  subtractCosts(bucket, lane, ticket.costs);
  if (wasFirst) wake(bucket, lane, ['document']);
  refreshReadiness(bucket, lane);
}

export function confirm(lane: Lane, lease: Lease): void {
  if (lease.stage !== 'unconfirmed') return;
  lease.stage = 'confirmed';
  lane.unconfirmed -= 1;
}

/** When the lane wakes; `null` = it does not sleep. */
export function asleepUntil(lane: Lane): number | null {
  let latest: number | null = null;
  for (const until of lane.asleep.values()) latest = latest === null ? until : Math.max(latest, until);
  return latest;
}

export interface Sleep {
  readonly because: SleepReason;
  readonly until: number;
}

/** A time that a response or a failure named holds for all calls of the workspace, those of the background, too. */
export function sleep(bucket: Bucket, lane: Lane, { because, until }: Sleep): void {
  fallAsleep(bucket, lane, { because, until });
  const twin = because === 'backoff' ? twinIn(bucket, lane) : undefined;
  if (twin !== undefined) fallAsleep(bucket, twin, { because, until });
}

function fallAsleep(bucket: Bucket, lane: Lane, { because, until }: Sleep): void {
  const known = lane.asleep.get(because);
  lane.asleep.set(because, known === undefined ? until : Math.max(known, until));
  rescheduleWaking(bucket, lane);
}

/** Ends the lane's sleep for these reasons. */
export function wake(bucket: Bucket, lane: Lane, reasons: readonly SleepReason[]): void {
  let changed = false;
  for (const reason of reasons) if (lane.asleep.delete(reason)) changed = true;
  if (changed) rescheduleWaking(bucket, lane);
}

function rescheduleWaking(bucket: Bucket, lane: Lane): void {
  const until = asleepUntil(lane);
  if (until === null) bucket.asleep.delete(lane.key);
  else bucket.asleep.set(lane.key, until);
  refreshReadiness(bucket, lane);
}

/** The ticket that goes first in the lane; `undefined` = none waits. */
export function headOf(bucket: Bucket, lane: Lane): Ticket | undefined {
  const first = firstIn(lane);
  return first === undefined ? undefined : bucket.tickets.get(first);
}

/** The ticket that goes first of those that keep an order with this one: of its lane, or of its caller there. */
export function headBefore(bucket: Bucket, lane: Lane, id: TicketId): Ticket | undefined {
  const own = lane.callers?.lines.get(bucket.tickets.get(id)?.caller ?? unnamed);
  const first = own?.line.first();
  return first === undefined ? headOf(bucket, lane) : bucket.tickets.get(first.name);
}

/** Puts the lane into the ready set of its head's class, or takes it out. The one place that decides readiness. */
export function refreshReadiness(bucket: Bucket, lane: Lane): void {
  const head = headOf(bucket, lane);
  const turns = turnsOf(bucket, lane.key);
  const ready = head !== undefined && lane.asleep.size === 0 && hasRoom(bucket, lane);
  const readyAs = ready ? readyNameOf(lane, head) : null;
  if (lane.readyAs === null) lane.start = Math.max(lane.start, turns.virtual);
  if (lane.readyAs !== null && lane.readyAs !== readyAs) turns.ready.get(lane.readyAs)?.delete(lane.key);
  lane.readyAs = readyAs;
  if (lane.line.size === 0 && lane.inFlight === 0 && lane.asleep.size === 0) {
    turns.idle.set(lane.key, lane.start);
  } else {
    turns.idle.delete(lane.key);
  }
  if (readyAs === null) return;
  let lanes = turns.ready.get(readyAs);
  if (lanes === undefined) {
    lanes = new SortedNames();
    turns.ready.set(readyAs, lanes);
  }
  lanes.set(lane.key, lane.start);
}

/** The name of the ready set of a lane with this head. */
export const readyNameOf = ({ key }: Lane, { callClass }: Ticket): string =>
  isBackground(key) ? `background ${callClass}` : callClass;

/** The lane has a place in flight left, and a slot of its ceiling as far as is known. */
const hasRoom = (bucket: Bucket, lane: Lane): boolean => {
  const { maxInFlight, slots, unconfirmed } = lane;
  return (
    (maxInFlight === null || inFlightOf(bucket, lane) < maxInFlight) &&
    (slots === null || unconfirmed < Math.max(1, slots))
  );
};

/** The lane of the workspace's other calls; `undefined` = it has none. */
export const twinIn = ({ lanes, background }: Bucket, { key }: Pick<Lane, 'key'>): Lane | undefined =>
  background === null ? undefined : lanes.get(twinOf(key));

/** Calls of the workspace in flight: a cap holds for its background and its other calls together. */
export const inFlightOf = (bucket: Bucket, { key, inFlight }: Lane): number =>
  inFlight + (twinIn(bucket, { key })?.inFlight ?? 0);

/** A call of the lane has come to be in flight, or is so no more. */
export function noteInFlight(bucket: Bucket, lane: Lane): void {
  refreshReadiness(bucket, lane);
  const twin = lane.maxInFlight === null ? undefined : twinIn(bucket, lane);
  if (twin !== undefined) refreshReadiness(bucket, twin);
}

/** True when a call that came back for a reservation may go: no other call may, while the lane sleeps for reservations alone. */
export function mayReturn(bucket: Bucket, lane: Lane, now: number): boolean {
  for (const [reason, until] of lane.asleep) if (reason !== 'reserved' && until > now) return false;
  return hasRoom(bucket, lane);
}

/** What was reported of the lane's ceiling: its slots are counted, or it sleeps for one. */
export function ceilingOf({ slots, asleep, line, ceilingTag: tag }: Lane, now: number): LaneCeiling | null {
  const minuteMs = (asleep.get('ceiling_minute') ?? now) - now;
  const dayMs = (asleep.get('ceiling_day') ?? now) - now;
  const waitMs = Math.max(0, minuteMs, dayMs);
  if (slots === null && waitMs === 0) return null;
  return { waitMs, heldBy: dayMs > minuteMs ? 'ceiling_day' : 'ceiling_minute', tag, waiting: line.size };
}

/** Forgets lanes whose state is that of a new lane, at most `most` of them. */
export function forgetIdleLanes(bucket: Bucket, most: number): void {
  let left = most;
  for (const turns of [bucket, bucket.background])
    for (let first = turns?.idle.first(); turns !== null && first !== undefined && left > 0; left -= 1) {
      if (first.score > turns.virtual) break;
      turns.idle.delete(first.name);
      bucket.lanes.delete(first.name);
      first = turns.idle.first();
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
    lane.asleep.clear();
    if (lane.slots !== null) lane.slots = Math.max(1, lane.slots);
    refreshReadiness(bucket, lane);
  }
}
