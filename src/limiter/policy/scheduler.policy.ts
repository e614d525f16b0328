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
import type { Feedback } from '../../call.ts';
import { type ReplicaId, type TicketId, isBackground } from '../../ids.ts';
import { type Settlement, returnGraceMs, type Reserving } from '../limiter.ts';
import {
  type Bucket,
  type BucketEvent,
  type EventReply,
  type Lane,
  type Lease,
  maxInFlightOf,
  recallPilot,
  type Ticket,
  type TimedLesson,
  type AdmitReply,
  allWaiting,
  closedMs,
  isFull,
  orderUnit,
  reopensInMs,
  type Reservation,
  type ReserveReply,
  sequencePerMs,
  type StoredAdmission,
} from './bucket-state.policy.ts';
import { cappedCosts, knownCosts } from './costs.policy.ts';
import {
  applyLaneSetting,
  confirm,
  dequeue,
  enqueue,
  forgetIdleLanes,
  giveTurnBack,
  refreshReadiness,
  sleep,
  wake,
  noteNotSent,
  wakesAt,
  callsAhead,
  laneFor,
  noteEntered,
} from './lanes.policy.ts';
import {
  applyLesson,
  applySettings,
  applyThrottle,
  correct,
  giveLeaseUnitsBack,
  noteService,
  refusedUnits,
  reopen,
  isUnder,
} from './learning.policy.ts';
import { type Effects, endLease, pump, replicaLifeMs } from './pump.policy.ts';
import { keep, forgetUnused, nextSlotAt, reservationOf } from './reservations.policy.ts';
import {
  aheadInLane,
  dueWithinMs,
  forecastAt,
  forecastReturning,
  positionOf,
  type LanePosition,
} from './forecast.policy.ts';
import { type Meter, meterNames, roomInMs } from './meter.policy.ts';

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
      if (lease !== undefined) applyLesson(bucket, lease, notAfter(event.lesson, now), now);
      return { kind: 'lease', known: lease !== undefined };
    }
    case 'slot_taken':
      return { kind: 'lease', known: slotTaken(bucket, event, now) };
    case 'cancel':
      cancel(bucket, event.ticket);
      return done;
    case 'reconfigure':
      applySettings(bucket, event.setting, now);
      for (const setting of event.lanes) {
        const lane = bucket.lanes.get(setting.lane);
        if (lane !== undefined) applyLaneSetting(bucket, lane, setting);
      }
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
      for (const meter of bucket.meters.values()) reopen(meter, now);
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
  const lane = ticket === undefined ? undefined : bucket.lanes.get(ticket.lane);
  if (ticket === undefined || ticket.lease !== null || lane === undefined) return;
  dequeue(bucket, lane, ticket);
  bucket.tickets.delete(id);
}

/** What is done once a second in a bucket that is in use: the dead and the idle are forgotten, and what is due is granted. */
export function upkeep(bucket: Bucket, now: number): Effects {
  forgetDeadReplicas(bucket, now);
  forgetIdleLanes(bucket);
  return pump(bucket, now);
}

/**
 * Forgets replicas that are not heard of any more, and the calls that waited on them: they count as calls that go first until then. A
 * replica that is alive after all enters its tickets again, at their positions.
 */
function forgetDeadReplicas(bucket: Bucket, now: number): void {
  const dead = bucket.replicas.between(-Infinity, now - replicaLifeMs);
  if (dead.length === 0) return;
  for (const replica of dead) bucket.replicas.delete(replica);
  for (const ticket of bucket.tickets.values()) {
    if (bucket.replicas.scoreOf(ticket.replica) === null) cancel(bucket, ticket.id);
  }
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
  const lane = lease === undefined ? undefined : bucket.lanes.get(lease.ticket.lane);
  if (lease === undefined || lane === undefined) return false;
  confirm(lane, lease);
  const isOther = edge?.ceilingTag !== undefined && edge.ceilingTag !== lane.ceilingTag;
  lane.slots = edge === null ? null : isOther ? Math.max(1, edge.slots) : edge.slots;
  if (edge !== null && edge.slots <= 0) {
    const heldMs = isOther ? Math.min(edge.nextSlotMs, maxOtherLimitsMs) : edge.nextSlotMs;
    sleep(bucket, lane, { because: 'ceiling_minute', until: wakesAt(bucket, lane, now + heldMs, now) });
  } else refreshReadiness(bucket, lane);
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
  const lane = bucket.lanes.get(lease.ticket.lane);
  if (lane === undefined) return false;
  const { ticket } = lease;
  const lesson = taught === null ? null : notAfter(taught, now);
  confirm(lane, lease);
  switch (settlement.kind) {
    case 'succeeded':
      // Before learning: a response that states the level has the correction in it.
      if (settlement.spent !== null) correct(bucket, lease, settlement.spent, now);
      if (lesson !== null) applyLesson(bucket, lease, lesson, now);
      bucket.opened = true;
      if (isLate !== true) for (const served of [lane, bucket]) noteService(served, now - lease.grantedAt);
      endLease(bucket, lane, lease);
      bucket.tickets.delete(ticket.id);
      break;
    case 'throttled':
      applyThrottle(bucket, lease, lesson, settlement.closeMs, now);
      endLease(bucket, lane, lease);
      if (settlement.closeMs > 0 && lesson !== null) raiseCost(ticket, lesson.feedback);
      if (settlement.requeue) requeue(bucket, lane, ticket);
      else bucket.tickets.delete(ticket.id);
      if (settlement.sleepMs > 0)
        sleep(bucket, lane, { because: 'backoff', until: now + settlement.sleepMs });
      break;
    case 'dropped':
      noteNotSent(bucket, lease);
      giveLeaseUnitsBack(bucket, lease, now);
      endLease(bucket, lane, lease);
      bucket.tickets.delete(ticket.id);
      slotIsBack(bucket, lane, now);
      break;
    case 'returned':
      noteNotSent(bucket, lease);
      recallPilot(bucket, lease);
      giveLeaseUnitsBack(bucket, lease, now);
      endLease(bucket, lane, lease);
      requeue(bucket, lane, ticket);
      giveBack(bucket, lane, lease, settlement, now);
      break;
    case 'unknown':
      // Its place in a capped lane or bucket stays taken until the lease expires.
      if (lane.maxInFlight === null && maxInFlightOf(bucket, now) === null) {
        endLease(bucket, lane, lease);
      } else {
        lease.stage = 'abandoned';
        lease.expiresAt = now + ticket.leaseMs;
        bucket.expiries.set(lease.token, lease.expiresAt);
        lane.abandoned.push(lease.expiresAt);
        lane.abandoned.sort((a, b) => a - b);
      }
      bucket.tickets.delete(ticket.id);
  }
  return true;
}

/** If the refusal states that the call needs more units than were reserved, the call waits for that many from now on. */
function raiseCost(ticket: Ticket, feedback: Feedback): void {
  const asked = refusedUnits(feedback);
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
    return sleep(bucket, lane, { because, until: now + sleepMs });
  }
  lane.slots = 1;
  // A slot of the ceiling came back after this grant: the ceiling may have refused it before that.
  if (lane.slotBackAt !== null && grantedAt < lane.slotBackAt) return refreshReadiness(bucket, lane);
  const heldMs = ceilingTag === lane.ceilingTag ? sleepMs : Math.min(sleepMs, maxOtherLimitsMs);
  sleep(bucket, lane, { because, until: wakesAt(bucket, lane, now + heldMs, now) });
}

/**
 * A call that was not sent has given its slot of the ceiling back: the lane does not sleep any more for a ceiling which that
 * slot had filled. Its next grant finds out what the ceiling allows.
 */
function slotIsBack(bucket: Bucket, lane: Lane, now: number): void {
  lane.slotBackAt = now;
  if (lane.slots !== null) lane.slots = Math.max(1, lane.slots);
  wake(bucket, lane, ['ceiling_minute', 'ceiling_day']);
}

/** The ticket is back at its position. */
function requeue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  ticket.lease = null;
  ticket.costs = cappedCosts(bucket, knownCosts(bucket, ticket.costs, ticket.document));
  if (ticket.reservation !== undefined) keep(bucket, { ...ticket.reservation, ticket: ticket.id });
  enqueue(bucket, lane, ticket);
  if (lane.callers === null) return;
  giveTurnBack(bucket, lane, ticket);
  refreshReadiness(bucket, lane);
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
  applySettings(bucket, admission.setting, now);
  const lane = bucket.lanes.get(admission.lane);
  if (lane !== undefined) applyLaneSetting(bucket, lane, admission);
  const known = bucket.tickets.get(admission.ticket);
  if (known !== undefined) return known;
  const ordered = orderedIn(bucket, admission, now);
  const refusal = admission.position.kind === 'kept' ? null : bucketRefusalOf(bucket, ordered, now);
  if (refusal !== null) return refusal;
  bucket.replicas.set(replica, now);
  const ticket = ticketOf(ordered, replica, ordered.order);
  if (ordered.kept !== null) {
    ticket.reservation = ordered.kept;
    keep(bucket, { ...ordered.kept, ticket: ticket.id });
  }
  const entered = laneFor(bucket, admission.lane, admission);
  bucket.tickets.set(ticket.id, ticket);
  enqueue(bucket, entered, ticket);
  noteEntered(bucket, entered, now);
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
  if (!isUnder(bucket, admission.setting)) return null;
  return bucketRefusalOf(bucket, orderedIn(bucket, admission, now), now);
}

/** The admission with what the bucket knows of its costs and of what it comes back for. */
function orderedIn(bucket: Bucket, admission: StoredAdmission, now: number): OrderedAdmission {
  const costs = cappedCosts(bucket, knownCosts(bucket, admission.costs, admission.document));
  const kept =
    admission.reservation === undefined ? null : reservationOf(bucket, { ...admission, costs }, now);
  return { ...admission, costs, kept, order: kept?.order ?? orderOf(admission, now) };
}

/** Where a call of this admission would stand. */
function positionFor(bucket: Bucket, admission: OrderedAdmission): LanePosition {
  const { lane: key, ticket: id, order, caller, kept } = admission;
  const lane = bucket.lanes.get(key);
  const ahead = lane === undefined ? 0 : callsAhead(bucket, lane, { id, order, caller });
  const { costs, document, weight, maxInFlight, perMinute } = admission;
  return { lane, key, costs, document, weight, maxInFlight, perMinute, ahead, order, own: kept?.id ?? null };
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
  return urgency * orderUnit + Math.floor(at * sequencePerMs);
}

/** What the owner of a ticket that was entered is told. */
function replyFor(bucket: Bucket, ticket: Ticket, now: number): AdmitReply {
  const { order } = ticket;
  const lease = ticket.lease === null ? undefined : bucket.leases.get(ticket.lease);
  if (lease !== undefined) return { kind: 'granted', order, lease: lease.token, expiresAt: lease.expiresAt };
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
  forgetUnused(bucket, now);
  const asked = orderedIn(bucket, admission, now);
  const { kept, costs } = asked;
  if (kept === null && !begins) return null;
  const order = kept?.order ?? behindReserved(bucket, asked);
  const position = positionFor(bucket, { ...asked, order });
  const id = kept?.id ?? (bucket.reservations.has(name) ? admission.ticket : name);
  const expected =
    kept === null ? forecastAt(bucket, position, now) : forecastReturning(bucket, position, now, id);
  const slotAt =
    kept !== null || admission.perMinute === null ? null : nextSlotAt(bucket, ceiling, admission.perMinute);
  const from = toldTime(kept, Math.max(now + expected.waitMs, now + waitMs, slotAt ?? now), now);
  const ahead = aheadInLane(bucket, position, from);
  keep(bucket, {
    id,
    lane: admission.lane,
    ceiling,
    order,
    costs,
    from,
    until: from + lastsMs,
    ticket: null,
  });
  return { kind: 'reserved', id, waitMs: from - now, ahead, heldBy: expected.heldBy };
}

/**
 * The order of a call that begins a reservation: behind those of its moment that have been told their times already. Calls of one moment,
 * at several replicas, come to the log in another order than they arrived in.
 */
function behindReserved(bucket: Bucket, { lane, order }: Pick<Reservation, 'lane' | 'order'>): number {
  let last = order;
  for (const kept of bucket.reservations.values())
    if (kept.lane === lane && kept.order - order < momentMs * sequencePerMs)
      last = Math.max(last, kept.order + 1);
  return last;
}

/** @param at the earliest time at which the call can leave, as far as is known now */
const toldTime = (kept: Reservation | null, at: number, now: number): number =>
  kept !== null && kept.from > now && at <= kept.from + sameMs ? kept.from : at;

/** True when nothing holds a call back that comes now: most calls find it so, and need no forecast. */
const goesAtOnce = (bucket: Bucket, { lane, costs, maxInFlight }: LanePosition, now: number): boolean =>
  allWaiting(bucket) === 0 &&
  bucket.reservations.size === 0 &&
  bucket.withheld === null &&
  closedMs(bucket, now) === 0 &&
  !isFull(bucket, now) &&
  reopensInMs(bucket, 0, now) === 0 &&
  (lane === undefined || (lane.asleep.size === 0 && maxInFlight === null)) &&
  meterNames.every((name) => hasRoom(bucket.meters.get(name), costs[name] ?? 0, now));

const hasRoom = (meter: Meter | undefined, units: number, now: number): boolean =>
  meter === undefined || units <= 0 || roomInMs(meter, units, 0, now) === 0;
