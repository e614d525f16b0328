/**
 * A granted call goes on and ends: it takes its slot of the workspace's ceiling, and its lease is settled once. Part of the
 * specification in `scheduler.policy.ts`.
 */
import type { Feedback } from '../../call.ts';
import type { LaneKey } from '../../ids.ts';
import type { Settlement } from '../limiter.ts';
import type { BucketEvent } from './bucket-events.ts';
import { noteNotSent, wakesAt } from './background.policy.ts';
import type { Bucket, Lane, Lease, Ticket } from './bucket-state.policy.ts';
import { giveTurnBack } from './callers.policy.ts';
import { endProbe, knownCosts } from './documents.policy.ts';
import { maxInFlightOf } from './in-flight.policy.ts';
import { confirm, enqueue, refreshReadiness, sleep, wake } from './lanes.policy.ts';
import { keep } from './reservations.policy.ts';
import { cappedCosts } from './waiting-costs.policy.ts';
import {
  applyLesson,
  applyThrottle,
  correct,
  giveLeaseUnitsBack,
  markLeaseAnswered,
  noteService,
  refusedUnits,
  type TimedLesson,
} from './lessons.policy.ts';
import { endLease, forgetTicket, pump, type Effects } from './pump.policy.ts';

/**
 * A ceiling's refusal under other limits than the lane's comes from a replica that has not reloaded its configuration yet, or has
 * reloaded it earlier than the others: such a refusal holds the lane no longer than this. Milliseconds.
 */
export const maxOtherLimitsMs = 200;

/** What a bucket's event of this kind says. */
type Said<Kind extends BucketEvent['kind']> = Omit<Extract<BucketEvent, { kind: Kind }>, 'kind'>;

/** The grant took a slot of a ceiling that is nearly used; `null`: it is not nearly used any more. */
export function slotTaken(bucket: Bucket, { lease: token, edge }: Said<'slot_taken'>, now: number): Effects {
  const lease = bucket.leases.get(token);
  const lane = lease === undefined ? undefined : bucket.lanes.get(lease.ticket.lane);
  if (lease !== undefined && lane !== undefined) {
    confirm(lane, lease);
    const isOther = edge?.ceilingTag !== undefined && edge.ceilingTag !== lane.ceilingTag;
    lane.slots = edge === null ? null : isOther ? Math.max(1, edge.slots) : edge.slots;
    if (edge !== null && edge.slots <= 0) {
      const heldMs = isOther ? Math.min(edge.nextSlotMs, maxOtherLimitsMs) : edge.nextSlotMs;
      sleep(bucket, lane, { because: 'ceiling_minute', until: wakesAt(bucket, lane, now + heldMs, now) });
    } else refreshReadiness(bucket, lane);
  }
  return pump(bucket, now);
}

/** Ends a lease, once: a token that is not known any more changes nothing. */
export function settle(
  bucket: Bucket,
  { lease: token, settlement, lesson }: Said<'settle'>,
  now: number,
): Effects {
  const lease = bucket.leases.get(token);
  if (lease === undefined || lease.stage === 'abandoned') return pump(bucket, now);
  const lane = bucket.lanes.get(lease.ticket.lane);
  if (lane === undefined) return pump(bucket, now);
  confirm(lane, lease);
  const held: LeasedCall = { bucket, lane, lease };
  switch (settlement.kind) {
    case 'succeeded':
      succeed(held, { settlement, lesson }, now);
      break;
    case 'throttled':
      throttle(held, { settlement, lesson }, now);
      break;
    case 'dropped':
      drop(held, now);
      break;
    case 'returned':
      giveBack(held, settlement, now);
      break;
    case 'unknown':
      leaveUnknown(held, now);
      break;
  }
  endProbe(bucket, lease, settlement.kind !== 'dropped' && settlement.kind !== 'returned');
  return pump(bucket, now);
}

/** A call of which the lease ends. */
interface LeasedCall {
  readonly bucket: Bucket;
  readonly lane: Lane;
  readonly lease: Lease;
}

/** One way in which a lease ends, and what that teaches. */
interface Ending<Kind extends Settlement['kind']> {
  readonly settlement: Extract<Settlement, { kind: Kind }>;
  readonly lesson: TimedLesson | null;
}

function succeed(
  { bucket, lane, lease }: LeasedCall,
  { settlement, lesson }: Ending<'succeeded'>,
  now: number,
): void {
  // Before learning: a response that states the level has the correction in it.
  if (settlement.spent !== null) correct(bucket, lease, settlement.spent, now);
  if (lesson !== null) applyLesson(bucket, { lease, lesson }, now);
  else markLeaseAnswered(bucket, lease);
  bucket.opened = true;
  for (const served of [lane, bucket]) noteService(served, now - lease.grantedAt);
  endLease(bucket, lane, lease);
  forgetTicket(bucket, lease.ticket);
}

function throttle(
  { bucket, lane, lease }: LeasedCall,
  { settlement, lesson }: Ending<'throttled'>,
  now: number,
): void {
  applyThrottle(bucket, { lease, lesson, closedMs: settlement.closeMs }, now);
  endLease(bucket, lane, lease);
  if (settlement.closeMs > 0 && lesson !== null) raiseCost(lease.ticket, lesson.feedback);
  if (settlement.requeue) requeue(bucket, lane, lease.ticket);
  else forgetTicket(bucket, lease.ticket);
  if (settlement.sleepMs > 0) sleep(bucket, lane, { because: 'backoff', until: now + settlement.sleepMs });
}

function drop({ bucket, lane, lease }: LeasedCall, now: number): void {
  noteNotSent(bucket, lease);
  giveLeaseUnitsBack(bucket, lease, now);
  endLease(bucket, lane, lease);
  forgetTicket(bucket, lease.ticket);
  slotIsBack(bucket, lane, now);
}

function giveBack(
  { bucket, lane, lease }: LeasedCall,
  { because, sleepMs, ceilingTag = lane.ceilingTag }: Extract<Settlement, { kind: 'returned' }>,
  now: number,
): void {
  noteNotSent(bucket, lease);
  giveLeaseUnitsBack(bucket, lease, now);
  endLease(bucket, lane, lease);
  requeue(bucket, lane, lease.ticket);
  if (because === 'backoff') slotIsBack(bucket, lane, now);
  else lane.slots = 1;
  const heldMs = ceilingTag === lane.ceilingTag ? sleepMs : Math.min(sleepMs, maxOtherLimitsMs);
  if (because !== 'backoff' && isBeforeSlot(lane, lease)) refreshReadiness(bucket, lane);
  else if (because === 'backoff') sleep(bucket, lane, { because, until: now + heldMs });
  else sleep(bucket, lane, { because, until: wakesAt(bucket, lane, now + heldMs, now) });
}

/** Its place in a capped lane or bucket stays taken until the lease expires. */
function leaveUnknown({ bucket, lane, lease }: LeasedCall, now: number): void {
  if (lane.maxInFlight === null && maxInFlightOf(bucket, now) === null) {
    endLease(bucket, lane, lease);
  } else {
    lease.stage = 'abandoned';
    lease.expiresAt = now + lease.ticket.leaseMs;
    bucket.expiries.set(lease.token, lease.expiresAt);
    lane.abandoned.push(lease.expiresAt);
    lane.abandoned.sort((a, b) => a - b);
  }
  forgetTicket(bucket, lease.ticket);
}

/** If the refusal states that the call needs more units than were reserved, the call waits for that many from now on. */
function raiseCost(ticket: Ticket, feedback: Feedback): void {
  const asked = refusedUnits(feedback);
  const name = feedback.throttle?.kind === 'rate' ? feedback.throttle.meter : null;
  if (asked === null || name === null || name === 'cost') return;
  if (asked > (ticket.costs[name] ?? 0)) ticket.costs = { ...ticket.costs, [name]: asked };
}

/** A slot of the lane's ceiling was given back by a call of another bucket. */
export function wakeForSlot(bucket: Bucket, key: LaneKey, now: number): Effects {
  const lane = bucket.lanes.get(key);
  if (lane !== undefined) slotIsBack(bucket, lane, now);
  return pump(bucket, now);
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

/** True when a slot of the ceiling came back after this grant: the ceiling may have refused the grant before that. */
const isBeforeSlot = ({ slotBackAt }: Lane, { grantedAt }: Lease): boolean =>
  slotBackAt !== null && grantedAt < slotBackAt;

/** The ticket is back at its position. */
function requeue(bucket: Bucket, lane: Lane, ticket: Ticket): void {
  ticket.lease = null;
  ticket.costs = cappedCosts(bucket, knownCosts(bucket, ticket.costs, ticket.document));
  if (ticket.reservation !== undefined) keep(bucket, { ...ticket.reservation, ticket: ticket.id });
  enqueue(bucket, lane, ticket);
  if (lane.callers === null) return;
  giveTurnBack(bucket, lane, ticket);
  wake(bucket, lane, ['document']);
  refreshReadiness(bucket, lane);
}
