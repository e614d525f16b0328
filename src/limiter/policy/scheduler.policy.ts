/**
 * The bucket scheduler: who may be sent now, who waits, who is refused. THE specification of admission;
 * every replica folds it over the entries of a log (`over-log/fold.ts`).
 *
 * Every transition takes the bucket, an event and the time, changes the bucket, and ends in the same pump:
 * sweep what expired, wake lanes, then grant heads of lanes in fair order while the bucket is open and every meter the
 * head needs has room. Inside a lane: by urgency, then arrival. Between lanes: start-time fair queueing
 * (Goyal, Vin, Cheng 1996), each grant counting the time for which it
 * keeps its most expensive meter busy / weight.
 *
 * Guarantees: no grant while closed or without room (2), at most `maxInFlight` leases per lane and per bucket (3), order within a lane
 * (4), weighted shares (5), a grant as soon as there is room (6), a refusal leaves no trace (11).
 * Does not own: time, sockets, deadlines of callers, ceilings (whoever sends takes their slots).
 */
import type { Feedback, MeterName } from '../../call.ts';
import {
  type ReplicaId,
  type TicketId,
  isBackground,
  leaseToken,
  type LaneKey,
  type LeaseToken,
} from '../../ids.ts';
import { type Settlement, returnGraceMs, type Reserving } from '../limiter.ts';
import * as buckets from './bucket-state.policy.ts';
import type {
  Bucket,
  BucketEvent,
  EventReply,
  Lane,
  Lease,
  Ticket,
  TimedLesson,
  AdmitReply,
  Reservation,
  ReserveReply,
  StoredAdmission,
  Turns,
} from './bucket-state.policy.ts';
import type { SortedNames } from './sorted.policy.ts';
import * as lanes from './lanes.policy.ts';
import * as learning from './learning.policy.ts';
import * as reservations from './reservations.policy.ts';
import {
  aheadInLane,
  dueWithinMs,
  forecastAt,
  forecastReturning,
  positionOf,
  type LanePosition,
} from './forecast.policy.ts';
import { roomInMs, costEntries, take, type MeterMark } from './meter.policy.ts';

/** Applies an event of a replica to a bucket that is there, and lets go who may go. */
export function apply(
  bucket: Bucket,
  { replica, event }: { readonly replica: ReplicaId; readonly event: BucketEvent },
  now: number,
): Effects & { readonly reply: EventReply } {
  if (event.kind !== 'admit') return { reply: happen(bucket, event, now), ...pump(bucket, now) };
  const entered = enterOrRefuse(bucket, { admission: event.admission, replica }, now);
  const effects = pump(bucket, now);
  return { reply: 'kind' in entered ? entered : replyFor(bucket, entered, now), ...effects };
}

const done: EventReply = { kind: 'done' };

function happen(bucket: Bucket, event: Exclude<BucketEvent, { kind: 'admit' }>, now: number): EventReply {
  switch (event.kind) {
    case 'reserve':
      return reserve(bucket, event, now) ?? done;
    case 'settle':
      return { kind: 'lease', known: settle(bucket, event, now) };
    case 'learn': {
      const lease = bucket.leases.get(event.lease);
      if (lease !== undefined) learning.applyLesson(bucket, lease, notAfter(event.lesson, now), now);
      return { kind: 'lease', known: lease !== undefined };
    }
    case 'slot_taken':
      return { kind: 'lease', known: slotTaken(bucket, event, now) };
    case 'cancel':
      cancel(bucket, event.ticket);
      return done;
    case 'reconfigure':
      learning.applySettings(bucket, event.setting, now);
      for (const setting of event.lanes)
        lanes.applyLaneSetting(bucket, bucket.lanes.get(setting.lane), setting);
      return done;
    case 'wake': {
      const lane = bucket.lanes.get(event.lane);
      if (lane !== undefined) slotIsBack(bucket, lane, now);
      return done;
    }
    case 'open':
      // What was closed later stays closed.
      if (bucket.closedAt !== null && bucket.closedAt > now - event.agoMs) return done;
      bucket.closedUntil = null;
      for (const meter of bucket.meters.values()) learning.reopen(meter, now);
      return done;
  }
}

/** Cuts the lesson's times at `now`: a replica knows the log's time only to half of a round trip, and may state a later one. */
const notAfter = ({ feedback, sentAt, headAt }: TimedLesson, now: number): TimedLesson => ({
  feedback,
  sentAt: Math.min(sentAt, now),
  headAt: Math.min(headAt, now),
});

/** A waiting ticket leaves; a granted or unknown one is left alone (its lease must be settled). */
function cancel(bucket: Bucket, id: TicketId): void {
  const ticket = bucket.tickets.get(id);
  if (ticket?.lease === null) removeWaiting(bucket, ticket);
}

function removeWaiting(bucket: Bucket, ticket: Ticket): void {
  lanes.dequeue(bucket, buckets.laneOf(bucket, ticket), ticket);
  bucket.tickets.delete(ticket.id);
}

/**
 * What is done once a second in a bucket that is in use. Replicas that are not heard of any more are forgotten, and the calls that waited on
 * them, which count as calls that go first until then: a replica that is alive after all enters its tickets again, at their positions.
 */
export function upkeep(bucket: Bucket, now: number): Effects {
  const dead = bucket.replicas.between(-Infinity, now - replicaLifeMs);
  for (const replica of dead) bucket.replicas.delete(replica);
  for (const { id, replica } of dead.length === 0 ? [] : bucket.tickets.values())
    if (bucket.replicas.scoreOf(replica) === null) cancel(bucket, id);
  lanes.forgetIdleLanes(bucket);
  return pump(bucket, now);
}

// A granted call goes on and ends: it takes its slot of the workspace's ceiling, and its lease is settled once

/**
 * A ceiling's refusal under other limits than the lane's comes from a replica that has not reloaded its configuration yet, or has
 * reloaded it earlier than the others: such a refusal holds the lane no longer than this. Milliseconds.
 */
export const maxOtherLimitsMs = 200;

/** What a bucket's event of this kind says. */
type Said<Kind extends BucketEvent['kind']> = Extract<BucketEvent, { kind: Kind }>;

/** The grant took a slot of a ceiling that is nearly used; `null`: it is not nearly used any more. False: its lease is not known. */
function slotTaken(bucket: Bucket, { lease: token, edge }: Said<'slot_taken'>, now: number): boolean {
  const lease = bucket.leases.get(token);
  if (lease === undefined) return false;
  const lane = buckets.laneOf(bucket, lease.ticket);
  lanes.confirm(lane, lease);
  const isOther = edge?.ceilingTag !== undefined && edge.ceilingTag !== lane.ceilingTag;
  lane.slots = edge === null ? null : isOther ? Math.max(1, edge.slots) : edge.slots;
  if (edge !== null && edge.slots <= 0) {
    const heldMs = isOther ? Math.min(edge.nextSlotMs, maxOtherLimitsMs) : edge.nextSlotMs;
    lanes.sleep(bucket, lane, 'ceiling_minute', lanes.wakesAt(bucket, lane, now + heldMs, now));
  } else lanes.refreshReadiness(bucket, lane);
  return true;
}

/** Ends a lease, once: a token that is not known any more changes nothing. False: it is not. */
function settle(
  bucket: Bucket,
  { lease: token, settlement, lesson: taught, isLate }: Said<'settle'>,
  now: number,
): boolean {
  const lease = bucket.leases.get(token);
  if (lease === undefined || lease.stage === 'abandoned') return false;
  const { ticket } = lease;
  const lane = buckets.laneOf(bucket, ticket);
  const lesson = taught === null ? null : notAfter(taught, now);
  lanes.confirm(lane, lease);
  switch (settlement.kind) {
    case 'succeeded':
      // Before learning: a response that states the level has the correction in it.
      if (settlement.spent !== null) learning.correct(bucket, lease, settlement.spent, now);
      if (lesson !== null) learning.applyLesson(bucket, lease, lesson, now);
      bucket.opened = true;
      if (isLate !== true)
        for (const served of [lane, bucket]) learning.noteService(served, now - lease.grantedAt);
      endLease(bucket, lane, lease);
      bucket.tickets.delete(ticket.id);
      break;
    case 'throttled':
      learning.applyThrottle(bucket, lease, lesson, settlement.closeMs, now);
      endLease(bucket, lane, lease);
      if (settlement.closeMs > 0 && lesson !== null) raiseCost(ticket, lesson.feedback);
      if (settlement.requeue) requeue(bucket, lane, ticket);
      else bucket.tickets.delete(ticket.id);
      if (settlement.sleepMs > 0) lanes.sleep(bucket, lane, 'backoff', now + settlement.sleepMs);
      break;
    case 'dropped':
      endUnsent(bucket, lane, lease, now);
      bucket.tickets.delete(ticket.id);
      slotIsBack(bucket, lane, now);
      break;
    case 'returned':
      buckets.recallPilot(bucket, lease);
      endUnsent(bucket, lane, lease, now);
      requeue(bucket, lane, ticket);
      giveBack(bucket, lane, lease, settlement, now);
      break;
    case 'unknown':
      // Its place in a capped lane or bucket stays taken until the lease expires.
      if (lane.maxInFlight === null && buckets.maxInFlightOf(bucket, now) === null)
        endLease(bucket, lane, lease);
      else {
        lease.stage = 'abandoned';
        lease.expiresAt = now + ticket.leaseMs;
        bucket.expiries.set(lease.token, lease.expiresAt);
      }
      bucket.tickets.delete(ticket.id);
  }
  return true;
}

/** Ends the lease of a call that was not sent. */
function endUnsent(bucket: Bucket, lane: Lane, lease: Lease, now: number): void {
  lanes.noteNotSent(bucket, lease);
  learning.giveLeaseUnitsBack(bucket, lease, now);
  endLease(bucket, lane, lease);
}

/** If the refusal states that the call needs more units than were reserved, the call waits for that many from now on. */
function raiseCost(ticket: Ticket, feedback: Feedback): void {
  const asked = learning.refusedUnits(feedback);
  const name = feedback.throttle?.kind === 'rate' ? feedback.throttle.meter : null;
  if (asked === null || name === null || name === 'cost') return;
  if (asked > (ticket.costs[name] ?? 0)) ticket.costs = { ...ticket.costs, [name]: asked };
}

/** The call was not sent, and is in its lane again, which sleeps. */
function giveBack(
  bucket: Bucket,
  lane: Lane,
  { grantedAt }: Lease,
  { because, sleepMs, ceilingTag = lane.ceilingTag }: Extract<Settlement, { kind: 'returned' }>,
  now: number,
): void {
  if (because === 'backoff') {
    slotIsBack(bucket, lane, now);
    return lanes.sleep(bucket, lane, because, now + sleepMs);
  }
  lane.slots = 1;
  // A slot of the ceiling came back after this grant: the ceiling may have refused it before that.
  if (lane.slotBackAt !== null && grantedAt < lane.slotBackAt) return lanes.refreshReadiness(bucket, lane);
  const heldMs = ceilingTag === lane.ceilingTag ? sleepMs : Math.min(sleepMs, maxOtherLimitsMs);
  lanes.sleep(bucket, lane, because, lanes.wakesAt(bucket, lane, now + heldMs, now));
}

/**
 * A call that was not sent has given its slot of the ceiling back: the lane does not sleep any more for a ceiling which that
 * slot had filled. Its next grant finds out what the ceiling allows.
 */
function slotIsBack(bucket: Bucket, lane: Lane, now: number): void {
  lane.slotBackAt = now;
  if (lane.slots !== null) lane.slots = Math.max(1, lane.slots);
  lanes.wake(bucket, lane, ['ceiling_minute', 'ceiling_day']);
}

/** The ticket is back at its position. */
function requeue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  ticket.lease = null;
  ticket.costs = buckets.cappedCosts(bucket, buckets.knownCosts(bucket, ticket.costs, ticket.document));
  if (ticket.reservation !== undefined)
    reservations.keep(bucket, { ...ticket.reservation, ticket: ticket.id });
  lanes.enqueue(bucket, lane, ticket);
  if (lane.callers === null) return;
  lanes.giveTurnBack(bucket, lane, ticket);
  lanes.refreshReadiness(bucket, lane);
}

/**
 * An arrival that is claimed to be longer ago than this is taken for this long ago: the repeat of a call whose client left it
 * after the longest wait (600 s) and came back within 60 s still gets its position. Milliseconds.
 */
export const maxArrivalAgoMs = 660_000;
/**
 * An arrival that is claimed to be later than now is taken for this much later at most. A clock that is known to half of a round
 * trip is ahead by less, and calls of one moment, which come one after the other, stay apart. Milliseconds.
 */
export const maxArrivalAheadMs = 50;

/** An admission with its position, as `order`, with costs that it can take, and what it comes back for; `null` = nothing. */
type OrderedAdmission = StoredAdmission & { readonly order: number; readonly kept: Reservation | null };

/** Enters a ticket into its lane, or refuses it at once: the ticket, or the refusal. Idempotent by ticket id. */
function enterOrRefuse(
  bucket: Bucket,
  { admission, replica }: { readonly admission: StoredAdmission; readonly replica: ReplicaId },
  now: number,
): Ticket | Refusal {
  if (bucket.tickets.has(admission.ticket)) bucket.replicas.set(replica, now);
  learning.applySettings(bucket, admission.setting, now);
  lanes.applyLaneSetting(bucket, bucket.lanes.get(admission.lane), admission);
  const known = bucket.tickets.get(admission.ticket);
  if (known !== undefined) return known;
  const ordered = orderedIn(bucket, admission, now);
  const refusal = admission.position.kind === 'kept' ? null : bucketRefusalOf(bucket, ordered, now);
  if (refusal !== null) return refusal;
  bucket.replicas.set(replica, now);
  const ticket = ticketOf(ordered, replica, ordered.order);
  if (ordered.kept !== null) {
    ticket.reservation = ordered.kept;
    reservations.keep(bucket, { ...ordered.kept, ticket: ticket.id });
  }
  const entered = lanes.laneFor(bucket, admission.lane, admission);
  bucket.tickets.set(ticket.id, ticket);
  lanes.enqueue(bucket, entered, ticket);
  lanes.noteEntered(bucket, entered, now);
  return ticket;
}

type Refusal = Extract<AdmitReply, { kind: 'refused' }>;

/**
 * The refusal that the admission would get, as far as the bucket shows it unchanged; `null` = it may be admitted, or must be asked,
 * because it brings other settings than the bucket has. Changes nothing.
 */
export function refusalShown(bucket: Bucket, admission: StoredAdmission, now: number): Refusal | null {
  const { position, reservation, ticket } = admission;
  // What is kept for a call that comes back may be known elsewhere only.
  if (position.kind === 'kept' || reservation !== undefined || bucket.tickets.has(ticket)) return null;
  const lane = bucket.lanes.get(admission.lane);
  if (lane !== undefined && lane.ceilingTag !== admission.ceilingTag) return null;
  if (!learning.isUnder(bucket, admission.setting)) return null;
  return bucketRefusalOf(bucket, orderedIn(bucket, admission, now), now);
}

/** The admission with what the bucket knows of its costs and of what it comes back for. */
function orderedIn(bucket: Bucket, admission: StoredAdmission, now: number): OrderedAdmission {
  const costs = buckets.cappedCosts(bucket, buckets.knownCosts(bucket, admission.costs, admission.document));
  const kept =
    admission.reservation === undefined
      ? null
      : reservations.reservationOf(bucket, { ...admission, costs }, now);
  return { ...admission, costs, kept, order: kept?.order ?? orderOf(admission, now) };
}

/** Where a call of this admission would stand. */
function positionFor(bucket: Bucket, admission: OrderedAdmission): LanePosition {
  const { lane: key, ticket: id, order, caller, kept } = admission;
  const lane = bucket.lanes.get(key);
  const ahead = lane === undefined ? 0 : lanes.callsAhead(bucket, lane, { id, order, caller });
  return { ...admission, lane, key, ahead, own: kept?.id ?? null };
}

/** A call that has not entered its lane yet. */
export const ticketOf = (
  { ticket: id, lane, callClass, costs, document, leaseMs, caller }: StoredAdmission,
  replica: ReplicaId,
  order: number,
): Ticket => ({
  id,
  lane,
  replica,
  order,
  callClass,
  costs,
  document,
  leaseMs,
  lease: null,
  ...(caller === undefined ? {} : { caller }),
});

/**
 * The position of a ticket: its urgency, then the time at which its replica received it, or the order it had before the
 * store lost it. So a replica that was slow for a moment does not send its calls to the end of the line.
 */
export function orderOf({ position, urgency }: StoredAdmission, now: number): number {
  if (position.kind === 'kept') return position.order;
  const at = Math.max(0, Math.min(now + maxArrivalAheadMs, Math.max(position.at, now - maxArrivalAgoMs)));
  return urgency * buckets.orderUnit + Math.floor(at * buckets.sequencePerMs);
}

/** What the owner of a ticket that was entered is told. */
function replyFor(bucket: Bucket, ticket: Ticket, now: number): AdmitReply {
  const { order } = ticket;
  if (ticket.lease !== null) return { kind: 'granted', order };
  const position = positionOf(bucket, ticket.id);
  // Nothing known keeps a ticket waiting that has no position.
  if (position === null) return { kind: 'queued', forecastMs: 0, ahead: 0, heldBy: 'queue', order };
  const isNew = ticket.reservation === undefined;
  const { waitMs, heldBy } = (isNew ? forecastAt : forecastReturning)(bucket, position, now);
  const ahead = isNew ? aheadInLane(bucket, position, now + waitMs) : position.ahead;
  return { kind: 'queued', forecastMs: waitMs, ahead, heldBy, order };
}

function bucketRefusalOf(bucket: Bucket, admission: OrderedAdmission, now: number): Refusal | null {
  const { kept, maxWaitMs } = admission;
  const position = positionFor(bucket, admission);
  if (kept !== null) {
    const { waitMs, heldBy } = forecastReturning(bucket, position, now);
    const retryInMs = Math.max(waitMs, kept.from - now);
    if (retryInMs <= Math.max(maxWaitMs, returnGraceMs)) return null;
    return { kind: 'refused', reason: 'wait_too_long', heldBy, retryInMs, ahead: position.ahead };
  }
  if (goesAtOnce(bucket, position, now)) return null;
  const waiting = position.lane?.line.size ?? 0;
  const isFull = waiting >= admission.maxQueued;
  // Where the line is full, no call can enter before a ticket has left it, however urgent the call is.
  const leaveFirst = isFull ? Math.min(waiting, 1) : 0;
  const behind = { ...position, ahead: Math.max(leaveFirst, position.ahead) };
  const { waitMs, heldBy } = forecastAt(bucket, behind, now);
  const ahead = aheadInLane(bucket, behind, now + waitMs);
  if (isFull && (waiting > 0 || waitMs > 0)) {
    return { kind: 'refused', reason: 'queue_full', heldBy: 'queue', retryInMs: waitMs, ahead };
  }
  if (waitMs <= maxWaitMs) return null;
  if (isBackground(position.key) && dueWithinMs(bucket, position, now) <= maxWaitMs) return null;
  return { kind: 'refused', reason: 'wait_too_long', heldBy, retryInMs: waitMs, ahead };
}

// A refused call keeps its position: which time its client is told, and until when it may come back. Each refused call gets a time of its own,
// also those that were refused together (13); a client that asks too early is told the same time again, so that it does not lose its turn by
// asking.

/** Times that are told twice differ by the ways of their messages: a later one counts if it is later than this. Milliseconds. */
const sameMs = 250;
/** Arrivals at several replicas that are closer than this may come to the log in any order. Milliseconds. */
const momentMs = 1_000;

/** `null`: nothing is kept. */
export function reserve(
  bucket: Bucket,
  { admission, reserving }: { readonly admission: StoredAdmission; readonly reserving: Reserving },
  now: number,
): ReserveReply | null {
  const { ceiling, waitMs, lastsMs, begins, name = admission.ticket } = reserving;
  reservations.forgetUnused(bucket, now);
  const asked = orderedIn(bucket, admission, now);
  const { kept, costs } = asked;
  if (kept === null && !begins) return null;
  const order = kept?.order ?? behindReserved(bucket, asked);
  const position = positionFor(bucket, { ...asked, order });
  const id = kept?.id ?? (bucket.reservations.has(name) ? admission.ticket : name);
  const expected =
    kept === null ? forecastAt(bucket, position, now) : forecastReturning(bucket, position, now, id);
  const slotAt =
    kept !== null || admission.perMinute === null
      ? null
      : reservations.nextSlotAt(bucket, ceiling, admission.perMinute);
  const from = toldTime(kept, Math.max(now + expected.waitMs, now + waitMs, slotAt ?? now), now);
  const ahead = aheadInLane(bucket, position, from);
  const { lane } = admission;
  reservations.keep(bucket, { id, lane, ceiling, order, costs, from, until: from + lastsMs, ticket: null });
  return { kind: 'reserved', id, waitMs: from - now, ahead, heldBy: expected.heldBy };
}

/**
 * The order of a call that begins a reservation: behind those of its moment that have been told their times already. Calls of one moment,
 * at several replicas, come to the log in another order than they arrived in.
 */
function behindReserved(bucket: Bucket, { lane, order }: Pick<Reservation, 'lane' | 'order'>): number {
  let last = order;
  for (const kept of bucket.reservations.values())
    if (kept.lane === lane && kept.order - order < momentMs * buckets.sequencePerMs)
      last = Math.max(last, kept.order + 1);
  return last;
}

/** @param at the earliest time at which the call can leave, as far as is known now */
const toldTime = (kept: Reservation | null, at: number, now: number): number =>
  kept !== null && kept.from > now && at <= kept.from + sameMs ? kept.from : at;

/** True when nothing holds a call back that comes now: most calls find it so, and need no forecast. */
const goesAtOnce = (bucket: Bucket, { lane, costs, maxInFlight }: LanePosition, now: number): boolean =>
  buckets.allWaiting(bucket) === 0 &&
  bucket.reservations.size === 0 &&
  bucket.withheld === null &&
  buckets.closedMs(bucket, now) === 0 &&
  !buckets.isFull(bucket, now) &&
  buckets.reopensInMs(bucket, 0, now) === 0 &&
  (lane === undefined || (lane.asleep.size === 0 && maxInFlight === null)) &&
  costEntries(costs).every(([name, units]) => {
    const meter = bucket.meters.get(name);
    return meter === undefined || roomInMs(meter, units, 0, now) === 0;
  });

// The pump in which every transition ends: sweep what expired, wake lanes, then grant heads of lanes in fair order
// while the bucket is open, has a place in flight left, and every meter the head needs has room

/** A replica without an event for this long counts as dead, and its waiting tickets are passed over. Milliseconds. */
export const replicaLifeMs = 5_000;
/** Grants of one pump at most: a transition stays short. What is left is done by the next pump, which is due at once. */
export const maxPerPump = 64;

/**
 * What a transition asks the store to do. `nextAt`: earliest time at which another pump may grant; `null` = none before the next
 * event.
 */
export interface Effects {
  readonly grants: readonly Granted[];
  readonly nextAt: number | null;
}

/** Room that is kept free for a reservation until about now is looked at again after so long. Milliseconds. */
const retryMs = 1;
/** The same of room that is kept until a call leaves, which may be at any time. Milliseconds. */
const recheckMs = 1_000;

export function pump(bucket: Bucket, now: number): Effects {
  let left = maxPerPump;
  let blocked = nothingBlocked;
  sweepLeases(bucket, now);
  lanes.wakeLanes(bucket, now);
  if (bucket.reservations.size > 0) reservations.forgetUnused(bucket, now);
  const grants: Granted[] = [];
  let nextAt = soonest(bucket.asleep.first()?.score ?? null, bucket.expiries.first()?.score ?? null);
  nextAt = soonest(nextAt, lanes.nextOneDueAt(bucket, now));
  if (bucket.reservations.size > 0 && buckets.allWaiting(bucket) > 0)
    nextAt = soonest(nextAt, reservations.nextTurn(bucket, now));
  // The fold looks at the bucket when nothing is withheld any more.
  if (bucket.withheld?.what === 'all') return { grants, nextAt: null };
  const isWaiting = buckets.allWaiting(bucket) > 0;
  if (isWaiting && buckets.closedMs(bucket, now) > 0) return { grants, nextAt: bucket.closedUntil };
  // Calls of which replicas have not told yet may hold the places of a cap.
  const withheldUntil =
    bucket.withheld !== null && bucket.withheld.until > now ? bucket.withheld.until : null;
  if (isWaiting && bucket.maxInFlight !== null && withheldUntil !== null)
    return { grants, nextAt: soonest(nextAt, withheldUntil) };
  while (buckets.allWaiting(bucket) > 0) {
    if (left <= 0) return { grants, nextAt: now };
    if (buckets.isFull(bucket, now)) return { grants, nextAt };
    const nextFirst = buckets.nextFirstCallAt(bucket, now);
    if (nextFirst > now) return { grants, nextAt: soonest(nextAt, nextFirst) };
    const head = nextHead(bucket, blocked, now);
    if (head === null) return { grants, nextAt };
    if (head.lane.maxInFlight !== null && withheldUntil !== null) {
      lanes.sleep(bucket, head.lane, 'term', withheldUntil);
      nextAt = soonest(nextAt, lanes.asleepUntil(head.lane));
      continue;
    }
    const isBehind = standsBehind(bucket, head, blocked, now);
    const inMs = isBehind ? null : roomForHeadInMs(bucket, head, now);
    if (inMs === null || inMs > 0) {
      const awaits = inMs !== null && bucket.background !== null && lanes.goesFirst(bucket, head.lane, now);
      const awaited = awaits ? costEntries(head.ticket.costs).map(([name]) => name) : [];
      // Blocks the class by which the lane was chosen: if it blocked the one that the lane has now, the lane would be chosen again for ever.
      blocked = [...blocked, { readyAs: head.readyAs, lane: head.lane, awaited }];
      if (inMs !== null) nextAt = soonest(nextAt, now + inMs);
      continue;
    }
    left -= 1;
    grants.push(grant(bucket, head, now));
    // The grant may have taken the place in flight of a lane for which others of its class wait.
    if (blocked.length > 0) blocked = blocked.filter(({ lane, readyAs }) => lane.readyAs === readyAs);
  }
  return { grants, nextAt: null };
}

/** Most pumps find room for all that waits. */
const nothingBlocked: readonly Blocked[] = [];

/** A call class whose next lane has no room now, and the meters for which that lane waits if it goes first. */
interface Blocked {
  readonly readyAs: string;
  readonly lane: Lane;
  readonly awaited: readonly MeterName[];
}

const isBlocked = (blocked: readonly Blocked[], readyAs: string): boolean =>
  blocked.some((other) => other.readyAs === readyAs);

/** A lane and the ticket that is next in it. */
interface Head {
  readonly lane: Lane;
  readonly ticket: Ticket;
}

/** A head, and the class under which its lane is ready. */
interface ReadyHead extends Head {
  readonly readyAs: string;
  /** It goes before lanes whose turn it would be, and into what they leave free, because somebody came back for a reservation. */
  readonly isForReservation: boolean;
}

/**
 * Picks the next workspace: the head of the ready lane with the smallest start tag (start-time fair queueing), among the classes
 * that are not blocked, and the class under which the lane is ready. Tickets of dead replicas are passed over. The score of a lane
 * in `bucket.ready` is its start tag.
 */
function nextHead(bucket: Bucket, blocked: readonly Blocked[], now: number): ReadyHead | null {
  for (;;) {
    const reserved = bucket.reservations.size === 0 ? null : nextReserved(bucket, blocked, now);
    if (reserved !== null) return reserved;
    const best = nextLane(bucket, blocked, now);
    if (best === undefined) return null;
    const lane = buckets.laneOf(bucket, { lane: best.name });
    const ticket = lanes.headOf(bucket, lane);
    if (ticket === undefined) return null;
    if (isAlive(bucket, ticket.replica, now))
      return { lane, ticket, readyAs: best.readyAs, isForReservation: false };
    removeWaiting(bucket, ticket);
  }
}

/** A ready lane. */
type NextLane = NonNullable<ReturnType<SortedNames<LaneKey>['first']>> & { readonly readyAs: string };

/** Whose turn it is: of the background when no other lane can go, or first when one of its calls is due. */
function nextLane(bucket: Bucket, blocked: readonly Blocked[], now: number): NextLane | undefined {
  const { background } = bucket;
  if (background === null || background.waiting === 0) return nextIn(bucket, blocked);
  if (lanes.isOneDue(bucket, now)) return nextIn(background, blocked) ?? nextIn(bucket, blocked);
  return nextIn(bucket, blocked) ?? nextIn(background, blocked, (name) => !lanes.leavesToTwin(bucket, name));
}

function nextIn(
  { ready }: Turns,
  blocked: readonly Blocked[],
  mayGo?: (name: LaneKey) => boolean,
): NextLane | undefined {
  let best: NextLane | undefined;
  for (const [readyAs, names] of ready) {
    const first = names.first(mayGo);
    if (first === undefined || isBlocked(blocked, readyAs)) continue;
    if (
      best === undefined ||
      first.score < best.score ||
      (first.score === best.score && first.name < best.name)
    )
      best = { ...first, readyAs };
  }
  return best;
}

/** True when calls that go first wait for a meter from which this one takes, too. */
const standsBehind = (
  bucket: Bucket,
  { lane, ticket }: ReadyHead,
  blocked: readonly Blocked[],
  now: number,
): boolean =>
  blocked.some(({ awaited }) => awaited.length > 0) &&
  !lanes.goesFirst(bucket, lane, now) &&
  costEntries(ticket.costs).some(([name]) => blocked.some(({ awaited }) => awaited.includes(name)));

function isAlive(bucket: Bucket, replica: ReplicaId, now: number): boolean {
  const heardAt = bucket.replicas.scoreOf(replica);
  return heardAt !== null && heardAt + replicaLifeMs >= now;
}

/**
 * The head of the first lane to which a call has come back for a reservation that is due. That call itself, unless others of its lane
 * and caller stand before it: they were expected to have left by now.
 */
function nextReserved(bucket: Bucket, blocked: readonly Blocked[], now: number): ReadyHead | null {
  for (const { lane: key, ticket: id, from } of reservations.dueReservations(bucket, now)) {
    const lane = bucket.lanes.get(key);
    if (id === null || from > now || lane === undefined || !lanes.mayReturn(bucket, lane, now)) continue;
    if (isBackground(key) && bucket.waiting > 0) continue;
    const ticket = lanes.headBefore(bucket, lane, id);
    if (ticket === undefined) continue;
    const readyAs = lanes.readyNameOf(lane, ticket);
    const isHindered = isBlocked(blocked, readyAs) || !isAlive(bucket, ticket.replica, now);
    if (!isHindered) return { lane, ticket, readyAs, isForReservation: true };
  }
  return null;
}

/** Milliseconds until every meter of the call has room for it, and for what it leaves free; 0 = now. */
function roomForHeadInMs(bucket: Bucket, { ticket, isForReservation }: ReadyHead, now: number): number {
  const costs = buckets.knownCosts(bucket, ticket.costs, ticket.document);
  const kept =
    isForReservation || bucket.reservations.size === 0 ? null : reservations.keptFreeBy(bucket, ticket, now);
  let maxMs = 0;
  for (const [name, units] of costEntries(costs)) {
    const meter = buckets.ensureMeter(bucket, name, now);
    const waiting = bucket.waitingCosts.get(name) ?? 0;
    maxMs = Math.max(maxMs, roomInMs(meter, units, waiting, now));
    const keptUnits = kept?.units.get(name) ?? 0;
    if (kept === null || keptUnits === 0 || meter.limit === null) continue;
    // More than the meter ever has free has to wait until less is kept.
    const untilLess = kept.until === null ? recheckMs : Math.max(kept.until - now, retryMs);
    const both = units + keptUnits;
    const room = both > meter.limit ? untilLess : roomInMs(meter, both, waiting, now);
    maxMs = Math.max(maxMs, Math.min(room, untilLess));
  }
  return maxMs;
}

function sweepLeases(bucket: Bucket, now: number): void {
  for (const token of bucket.expiries.upTo(now)) {
    const lease = bucket.leases.get(token);
    if (lease === undefined) continue;
    const lane = buckets.laneOf(bucket, lease.ticket);
    lanes.confirm(lane, lease);
    endLease(bucket, lane, lease);
    if (lease.stage !== 'abandoned') bucket.tickets.delete(lease.ticket.id);
  }
}

function soonest(a: number | null, b: number | null): number | null {
  if (a === null) return b;
  return b === null ? a : Math.min(a, b);
}

/** Ends the lease's hold on its lane; meters are settled by the caller. */
function endLease(bucket: Bucket, lane: Lane, lease: Lease): void {
  learning.markLeaseAnswered(bucket, lease);
  bucket.leases.delete(lease.token);
  bucket.expiries.delete(lease.token);
  lane.leases.delete(lease.token);
  if (bucket.leases.size === 0 && !bucket.opened) bucket.probingSince = null;
  lanes.noteInFlight(bucket, lane);
}

// Grants: the head of a lane takes its units and gets a lease

/** A grant on its way to the replica that holds the ticket. */
export interface Granted {
  readonly ticket: TicketId;
  readonly lane: LaneKey;
  readonly replica: ReplicaId;
  readonly lease: LeaseToken;
  readonly expiresAt: number;
  /** A background call that leaves before all others, as none has left for a minute. */
  readonly isDue?: true;
}

/**
 * @param head with `isForReservation` it goes before lanes whose turn it would have been, for a reservation
 * @param token of a call that was granted before, of which the bucket has lost the lease
 */
export function grant(
  bucket: Bucket,
  { lane, ticket, isForReservation = false }: Head & { readonly isForReservation?: boolean },
  now: number,
  token = leaseToken(`${ticket.id}.${++bucket.sequence}`),
): Granted {
  const isDue = isBackground(lane.key) && lanes.isOneDue(bucket, now);
  lanes.dequeue(bucket, lane, ticket);
  if (ticket.reservation !== undefined) reservations.forgetReservation(bucket, ticket.reservation.id);
  const costs = buckets.knownCosts(bucket, ticket.costs, ticket.document);
  const marks = new Map<MeterName, MeterMark>();
  for (const [name, units] of costEntries(costs))
    marks.set(name, take(buckets.ensureMeter(bucket, name, now), units, now));
  const lease: Lease = {
    token,
    ticket,
    grantedAt: now,
    marks,
    expiresAt: now + ticket.leaseMs,
    answered: false,
    stage: lane.slots === null ? 'confirmed' : 'unconfirmed',
  };
  ticket.lease = token;
  bucket.leases.set(token, lease);
  bucket.expiries.set(token, lease.expiresAt);
  buckets.noteGrant(bucket, lease, now);
  if (!bucket.opened && bucket.probingSince === null) bucket.probingSince = now;
  // The others' turns do not begin later because of it; its lane has had one.
  const turns = buckets.turnsOf(bucket, lane.key);
  if (!isForReservation) turns.virtual = Math.max(turns.virtual, lane.start);
  lanes.noteGranted(bucket, lane, lease);
  const service = buckets.serviceCost(bucket, costs);
  lane.start += service / lane.weight;
  lanes.takeTurn(lane, ticket, service);
  lane.leases.add(token);
  lane.grantedAt = now;
  if (lease.stage === 'unconfirmed') lane.unconfirmed += 1;
  lanes.noteInFlight(bucket, lane);
  const { id, replica } = ticket;
  const granted = { ticket: id, lane: lane.key, replica, lease: token, expiresAt: lease.expiresAt };
  return isDue ? { ...granted, isDue } : granted;
}
