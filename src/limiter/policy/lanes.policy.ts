/**
 * Lanes of a bucket: entering and leaving the line, falling asleep and waking, the one decision whether a lane is in the running, whose turn
 * it is of the callers of a workspace, and when background calls go. Part of the specification in `scheduler.policy.ts`.
 */
import { callerKey, type CallerKey, isBackground, type TicketId, twinOf } from '../../ids.ts';
import type { Admission, LaneCeiling, LaneKey, LaneSetting, SleepReason } from '../limiter.ts';
import {
  type Bucket,
  type Callers,
  type Lane,
  type Lease,
  noTurns,
  type Ticket,
  turnsOf,
  countCosts,
  meanServiceCost,
  serviceCost,
} from './bucket-state.policy.ts';
import { release } from './reservations.policy.ts';
import { SortedNames } from './sorted.policy.ts';

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
      leases: new Set(),
      line: new SortedNames(),
      callers: null,
      waitingCosts: new Map(),
      asleep: new Map(),
      slots: null,
      unconfirmed: 0,
      serviceMs: 0,
      grantedAt: null,
      slotBackAt: null,
      readyAs: null,
    };
    bucket.lanes.set(key, lane);
    const until = twinIn(bucket, lane)?.asleep.get('backoff');
    if (until !== undefined) fallAsleep(bucket, lane, 'backoff', until);
  }
  applyLaneSetting(bucket, lane, setting);
  return lane;
}

/**
 * A change of the ceiling's limits wakes a lane that slept because of them: its next grant finds out what the new ones allow. A lane
 * without a cap does not wait for what other replicas may have under way.
 */
export function applyLaneSetting(bucket: Bucket, lane: Lane | undefined, setting: LaneSetting): void {
  if (lane === undefined) return;
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

/** Puts the ticket into its lane's line. */
export function enqueue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  const turns = turnsOf(bucket, lane.key);
  lane.line.set(ticket.id, ticket.order);
  turns.waiting += 1;
  countCosts(bucket, lane, ticket.costs, 1);
  joinCaller(lane, ticket);
  refreshReadiness(bucket, lane);
}

export function dequeue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  if (!lane.line.delete(ticket.id)) return;
  if (ticket.reservation !== undefined) release(bucket, ticket.reservation.id);
  leaveCaller(lane, ticket);
  const turns = turnsOf(bucket, lane.key);
  turns.waiting -= 1;
  countCosts(bucket, lane, ticket.costs, -1);
  refreshReadiness(bucket, lane);
}

export function confirm(lane: Lane, lease: Lease): void {
  if (lease.stage !== 'unconfirmed') return;
  lease.stage = 'confirmed';
  lane.unconfirmed -= 1;
}

/** When the lane wakes; `null` = it does not sleep. */
export const asleepUntil = ({ asleep }: Lane): number | null =>
  asleep.size === 0 ? null : Math.max(...asleep.values());

/** A time that a response or a failure named holds for all calls of the workspace, those of the background, too. */
export function sleep(bucket: Bucket, lane: Lane, because: SleepReason, until: number): void {
  fallAsleep(bucket, lane, because, until);
  const twin = because === 'backoff' ? twinIn(bucket, lane) : undefined;
  if (twin !== undefined) fallAsleep(bucket, twin, because, until);
}

function fallAsleep(bucket: Bucket, lane: Lane, because: SleepReason, until: number): void {
  lane.asleep.set(because, Math.max(lane.asleep.get(because) ?? until, until));
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
  const hasPlace = maxInFlight === null || inFlightOf(bucket, lane) < maxInFlight;
  return hasPlace && (slots === null || unconfirmed < Math.max(1, slots));
};

/** The lane of the workspace's other calls; `undefined` = it has none. */
export const twinIn = ({ lanes, background }: Bucket, { key }: Pick<Lane, 'key'>): Lane | undefined =>
  background === null ? undefined : lanes.get(twinOf(key));

/** Calls of the workspace in flight: a cap holds for its background and its other calls together. */
export const inFlightOf = (bucket: Bucket, { key, leases }: Lane): number =>
  leases.size + (twinIn(bucket, { key })?.leases.size ?? 0);

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
export function ceilingOf({ slots, asleep, line }: Lane, now: number): LaneCeiling | null {
  const minuteMs = (asleep.get('ceiling_minute') ?? now) - now;
  const dayMs = (asleep.get('ceiling_day') ?? now) - now;
  const waitMs = Math.max(0, minuteMs, dayMs);
  if (slots === null && waitMs === 0) return null;
  return { waitMs, heldBy: dayMs > minuteMs ? 'ceiling_day' : 'ceiling_minute', waiting: line.size };
}

/** Forgets lanes whose state is that of a new lane: nothing waits, is in flight or asleep, and they have had their turn. */
export function forgetIdleLanes(bucket: Bucket): void {
  for (const [key, { line, leases, asleep, start }] of bucket.lanes)
    if (line.size + leases.size + asleep.size === 0 && start <= turnsOf(bucket, key).virtual)
      bucket.lanes.delete(key);
}

/** Wakes lanes whose time has come. */
export function wakeLanes(bucket: Bucket, now: number): void {
  for (const key of bucket.asleep.upTo(now)) {
    bucket.asleep.delete(key);
    const lane = bucket.lanes.get(key);
    if (lane === undefined) continue;
    lane.asleep.clear();
    if (lane.slots !== null) lane.slots = Math.max(1, lane.slots);
    refreshReadiness(bucket, lane);
  }
}

// The callers of a workspace, where calls name them: a lane's turns are shared fairly between them (start-time fair queueing, as between
// lanes), and the calls of each go by urgency and arrival. Calls that name no caller are of one caller. While `maxCallers` are known, further
// ones are one more together. A lane has callers only while calls wait that name one: whoever meets an empty line owes nobody a turn.

/** Callers of a lane that are told apart at a time. */
export const maxCallers = 1_000;
/** Those beyond them, and calls that name none. */
const further = callerKey('other');
export const unnamed = callerKey('');

/** Less than this part of a call is the error of a division. */
export const rounding = 1e-9;

/** The ticket has entered the lane's line: it stands among the calls of its caller. */
function joinCaller(lane: Lane, ticket: Ticket): void {
  if (lane.callers === null && ticket.caller === undefined) return;
  const callers = (lane.callers ??= callersOf(lane, ticket));
  const name = knownAs(callers, ticket.caller);
  if (ticket.caller !== undefined) ticket.caller = name;
  let own = callers.lines.get(name);
  if (own === undefined) {
    if (callers.lines.size >= maxCallers) for (const idle of idleIn(callers)) callers.lines.delete(idle);
    own = { line: new SortedNames(), start: callers.virtual };
    callers.lines.set(name, own);
  }
  if (own.line.size === 0) own.start = Math.max(own.start, callers.virtual);
  own.line.set(ticket.id, ticket.order);
  callers.turns.set(name, own.start);
}

/** The first call that names its caller comes: those that wait in its lane have named none. */
function callersOf({ line }: Lane, { id }: Ticket): Callers {
  const callers: Callers = { virtual: 0, lines: new Map(), turns: new SortedNames() };
  const waiting = new SortedNames<TicketId>();
  for (const other of line.names()) if (other !== id) waiting.set(other, line.scoreOf(other) ?? 0);
  if (waiting.size === 0) return callers;
  callers.lines.set(unnamed, { line: waiting, start: 0 });
  callers.turns.set(unnamed, 0);
  return callers;
}

/**
 * The name under which a caller stands in the lane. Further callers stay together until none of their calls waits, so that each one's
 * calls keep their order.
 */
function knownAs(callers: Callers, caller: CallerKey = unnamed): CallerKey {
  const { lines } = callers;
  if (caller === unnamed || lines.has(caller)) return caller;
  if ((lines.get(further)?.line.size ?? 0) > 0) return further;
  return lines.size < maxCallers || idleIn(callers).length > 0 ? caller : further;
}

/** Callers of whom no call waits and who have had their turn: they are as new ones. */
const idleIn = ({ virtual, lines }: Callers): CallerKey[] =>
  [...lines].flatMap(([name, { line, start }]) => (line.size === 0 && start <= virtual ? [name] : []));

/** The ticket has left the lane's line. */
function leaveCaller(lane: Lane, { id, caller = unnamed }: Ticket): void {
  const { callers, line } = lane;
  if (callers === null) return;
  if (line.size === 0) {
    lane.callers = null;
    return;
  }
  const own = callers.lines.get(caller);
  own?.line.delete(id);
  if (own?.line.size === 0) callers.turns.delete(caller);
}

/** A call of the lane was granted, which counts for so much of its caller's share. */
export function takeTurn({ callers }: Lane, { caller = unnamed }: Ticket, service: number): void {
  const own = callers?.lines.get(caller);
  if (callers === null || own === undefined) return;
  callers.virtual = Math.max(callers.virtual, own.start);
  own.start += service;
  if (own.line.size > 0) callers.turns.set(caller, own.start);
}

/**
 * A granted call is back in the line: its turn did not take place. However many calls of a caller come back, others wait for no more than
 * one round.
 */
export function giveTurnBack(bucket: Bucket, { callers }: Lane, { caller = unnamed, costs }: Ticket): void {
  const own = callers?.lines.get(caller);
  if (callers === null || own === undefined) return;
  own.start = Math.max(callers.virtual, own.start - serviceCost(bucket, costs));
  callers.turns.set(caller, own.start);
}

/** The call that goes first in the lane; `undefined` = none waits. */
export function firstIn({ callers, line }: Lane): TicketId | undefined {
  const next = callers?.turns.first();
  return (next === undefined ? line : callers?.lines.get(next.name)?.line)?.first()?.name;
}

/** A call in its lane, or about to enter it. */
type Standing = Pick<Ticket, 'id' | 'order'> & { readonly caller?: CallerKey | undefined };

/** How many calls of the lane go before this one: those of its caller, and of each other one as many as have smaller start tags. */
export function callsAhead(bucket: Bucket, lane: Lane, { id, order, caller }: Standing): number {
  const { callers, line } = lane;
  if (callers === null) return caller === undefined ? line.rank(id, order) : Math.min(line.size, 1);
  const name = knownAs(callers, caller);
  const own = callers.lines.get(name);
  const service = meanServiceCost(bucket, { costs: lane.waitingCosts, calls: line.size });
  const before = own?.line.rank(id, order) ?? 0;
  const from =
    own === undefined || own.line.size === 0 ? Math.max(own?.start ?? 0, callers.virtual) : own.start;
  let ahead = before;
  for (const [other, { line: calls, start }] of callers.lines) {
    if (other === name || calls.size === 0) continue;
    const turns = turnsBefore((from + before * service - start) / service, other < name);
    ahead += Math.min(calls.size, turns);
  }
  return ahead;
}

/** How many calls of a line, whose first call is so many calls ahead of a start tag, go before it. Of equal tags the first name goes first. */
export const turnsBefore = (shares: number, isFirst: boolean): number =>
  Math.max(0, isFirst ? Math.floor(shares + rounding) + 1 : Math.ceil(shares - rounding));

/** True when a call holds a place in flight that others wait for until it has ended: its lane or its bucket has a cap. */
export const isCapped = ({ maxInFlight, setting }: Pick<Admission, 'maxInFlight' | 'setting'>): boolean =>
  maxInFlight !== null || setting.maxInFlightTotal !== undefined;

// Background calls leave when no other call of the bucket can, but one a minute while any wait. Their lanes take turns with each other. From the
// moment another call waits, no background call takes what it waits for, but for that one a minute.

/** While background calls wait, one leaves so often at least. Milliseconds. */
const oneEveryMs = 60_000;

/** None has left for so long that one has to leave before all others. */
export const isOneDue = ({ background }: Bucket, now: number): boolean =>
  background !== null && background.waiting > 0 && now - background.since >= oneEveryMs;

/** When one has to leave before all others; `null` = none waits, or it is due. */
export function nextOneDueAt({ background }: Bucket, now: number): number | null {
  if (background === null || background.waiting === 0) return null;
  const at = background.since + oneEveryMs;
  return at > now ? at : null;
}

/** How long one that comes now waits until it is due, if all that wait leave before it. Milliseconds. */
export function dueAfterMs({ background }: Bucket, now: number): number {
  if (background === null || background.waiting === 0) return oneEveryMs;
  return Math.max(0, background.since + oneEveryMs - now) + background.waiting * oneEveryMs;
}

/** True for a lane of those that go first now: those of the background go behind all others, until one of them is due. */
export const goesFirst = (bucket: Bucket, { key }: Pick<Lane, 'key'>, now: number): boolean =>
  isBackground(key) === isOneDue(bucket, now);

/**
 * True while other calls of this background lane's workspace wait and may not go: what holds them (the ceiling, mostly) is the
 * workspace's, and the next place is theirs.
 */
export function leavesToTwin(bucket: Bucket, key: LaneKey): boolean {
  const twin = twinIn(bucket, { key });
  return twin !== undefined && twin.line.size > 0 && twin.readyAs === null;
}

/** A call has entered the lane. */
export function noteEntered({ background }: Bucket, { key }: Lane, now: number): void {
  if (background !== null && background.waiting === 1 && isBackground(key)) background.since = now;
}

/** A call of the lane was granted. */
export function noteGranted({ background }: Bucket, { key }: Lane, lease: Lease): void {
  if (background === null || !isBackground(key)) return;
  lease.backgroundSince = background.since;
  background.since = lease.grantedAt;
}

/** The lease's call was not sent. */
export function noteNotSent({ background }: Bucket, { backgroundSince }: Lease): void {
  if (background !== null && backgroundSince !== undefined)
    background.since = Math.min(background.since, backgroundSince);
}

/** A lane that its ceiling holds until then wakes when one of its calls may be due: that one may take any slot. */
export function wakesAt(bucket: Bucket, { key }: Lane, until: number, now: number): number {
  const dueAt = isBackground(key) ? nextOneDueAt(bucket, now) : null;
  return dueAt === null ? until : Math.min(until, dueAt);
}
