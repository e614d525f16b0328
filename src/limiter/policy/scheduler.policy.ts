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
import type { ReplicaId, TicketId } from '../../ids.ts';
import type { Settlement } from '../limiter.ts';
import { enterOrRefuse, replyFor, reserve } from './admit.policy.ts';
import { noteNotSent, wakesAt } from './background.policy.ts';
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
} from './learning.policy.ts';
import { type Effects, endLease, pump, replicaLifeMs } from './pump.policy.ts';
import { keep } from './reservations.policy.ts';

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
