/**
 * A call asks to enter its lane: it is granted, waits, or is refused at once with the time after which it may come again.
 * Part of the specification in `scheduler.policy.ts`.
 */
import { returnGraceMs } from '../limiter.ts';
import { isBackground, type ReplicaId } from '../../ids.ts';
import { noteEntered } from './background.policy.ts';
import type { AdmitReply, StoredAdmission } from './bucket-events.ts';
import {
  orderUnit,
  sequencePerMs,
  type Bucket,
  type Reservation,
  type Ticket,
} from './bucket-state.policy.ts';
import { callsAhead } from './callers.policy.ts';
import { knownCosts } from './documents.policy.ts';
import {
  aheadInLane,
  dueWithinMs,
  forecastAt,
  forecastReturning,
  forecastWithin,
  positionOf,
} from './forecast.policy.ts';
import type { LanePosition } from './forecast-others.policy.ts';
import { applyLaneSetting, enqueue, laneFor } from './lanes.policy.ts';
import { cappedCosts } from './waiting-costs.policy.ts';
import { applySettings, isUnder } from './lessons.policy.ts';
import { pump, type Effects } from './pump.policy.ts';
import { keep, reservationOf } from './reservations.policy.ts';

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

/** A call of this replica asks to enter. */
export interface Entering {
  readonly admission: StoredAdmission;
  readonly replica: ReplicaId;
}

/** An admission with its position, as `order`, with costs that it can take, and what it comes back for; `null` = nothing. */
type OrderedAdmission = StoredAdmission & { readonly order: number; readonly kept: Reservation | null };

/** Enters a ticket into its lane, or refuses it at once. Idempotent by ticket id. */
export function admit(
  bucket: Bucket,
  { admission, replica }: Entering,
  now: number,
): AdmitReply & { readonly effects: Effects } {
  const { maxWaitMs } = admission;
  if (bucket.tickets.has(admission.ticket)) bucket.replicas.set(replica, now);
  applySettings(bucket, admission.setting, now);
  const lane = bucket.lanes.get(admission.lane);
  if (lane !== undefined) applyLaneSetting(bucket, lane, admission);
  const before = pump(bucket, now);
  const known = bucket.tickets.get(admission.ticket);
  if (known !== undefined) return { ...replyFor(bucket, { ticket: known, maxWaitMs }, now), effects: before };
  const ordered = orderedIn(bucket, admission, now);
  const refusal = admission.position.kind === 'kept' ? null : bucketRefusalOf(bucket, ordered, now);
  if (refusal !== null) return { ...refusal, effects: before };

  bucket.replicas.set(replica, now);
  const ticket = enter(bucket, { admission: ordered, replica }, now);
  const effects = merge(before, pump(bucket, now));
  return { ...replyFor(bucket, { ticket, maxWaitMs }, now), effects };
}

/**
 * The refusal that the admission would get, as far as the bucket shows it unchanged; `null` = it may be admitted, or must be asked,
 * because it brings other settings than the bucket has. Changes nothing.
 */
export function refusalShown(
  bucket: Bucket,
  admission: StoredAdmission,
  now: number,
): Extract<AdmitReply, { kind: 'refused' }> | null {
  if (admission.position.kind === 'kept' || bucket.tickets.has(admission.ticket)) return null;
  const lane = bucket.lanes.get(admission.lane);
  if (lane !== undefined && lane.ceilingTag !== admission.ceilingTag) return null;
  if (!isUnder(bucket, admission.setting)) return null;
  return bucketRefusalOf(bucket, orderedIn(bucket, admission, now), now);
}

/** The admission with what the bucket knows of its costs and of what it comes back for. */
export function orderedIn(bucket: Bucket, admission: StoredAdmission, now: number): OrderedAdmission {
  const costs = cappedCosts(bucket, knownCosts(bucket, admission.costs, admission.document));
  const kept =
    admission.reservation === undefined ? null : reservationOf(bucket, { ...admission, costs }, now);
  return { ...admission, costs, kept, order: kept?.order ?? orderOf(admission, now) };
}

/** Where a call of this admission would stand. */
export function positionFor(bucket: Bucket, admission: OrderedAdmission): LanePosition {
  const { lane: key, ticket: id, order, caller, costs, weight, maxInFlight, perMinute, kept } = admission;
  const lane = bucket.lanes.get(key);
  const ahead = lane === undefined ? 0 : callsAhead(bucket, lane, { id, order, caller });
  return { lane, key, costs, weight, maxInFlight, perMinute, ahead, order, own: kept?.id ?? null };
}

/** An admission that is not refused. */
interface Enters {
  readonly admission: OrderedAdmission;
  readonly replica: ReplicaId;
}

function enter(bucket: Bucket, { admission, replica }: Enters, now: number): Ticket {
  const lane = laneFor(bucket, admission.lane, admission);
  const ticket: Ticket = {
    id: admission.ticket,
    lane: admission.lane,
    replica,
    order: admission.order,
    callClass: admission.callClass,
    costs: admission.costs,
    document: admission.document,
    leaseMs: admission.leaseMs,
    lease: null,
  };
  if (admission.kept !== null) {
    ticket.reservation = admission.kept;
    keep(bucket, { ...admission.kept, ticket: ticket.id });
  }
  if (admission.caller !== undefined) ticket.caller = admission.caller;
  bucket.tickets.set(ticket.id, ticket);
  enqueue(bucket, lane, ticket);
  noteEntered(bucket, lane, now);
  return ticket;
}

/**
 * The position of a ticket: its urgency, then the time at which its replica received it, or the order it had before the
 * store lost it. So a replica that was slow for a moment does not send its calls to the end of the line.
 */
export function orderOf({ position, urgency }: StoredAdmission, now: number): number {
  if (position.kind === 'kept') return position.order;
  const at = Math.max(0, Math.min(now + maxArrivalAheadMs, Math.max(position.at, now - maxArrivalAgoMs)));
  return urgency * orderUnit + Math.floor(at * sequencePerMs);
}

/** A ticket in its bucket, and how long it may wait. */
interface Entered {
  readonly ticket: Ticket;
  readonly maxWaitMs: number;
}

function replyFor(bucket: Bucket, { ticket, maxWaitMs }: Entered, now: number): AdmitReply {
  const { order } = ticket;
  const lease = ticket.lease === null ? undefined : bucket.leases.get(ticket.lease);
  if (lease !== undefined) return { kind: 'granted', order, lease: lease.token, expiresAt: lease.expiresAt };
  const position = positionOf(bucket, ticket.id);
  // Nothing known keeps a ticket waiting that has no position.
  if (position === null) return { kind: 'queued', forecastMs: 0, ahead: 0, heldBy: 'queue', order };
  const { waitMs, heldBy } =
    ticket.reservation === undefined
      ? forecastWithin(bucket, { position, withinMs: maxWaitMs }, now)
      : forecastReturning(bucket, position, now);
  const ahead =
    ticket.reservation === undefined ? aheadInLane(bucket, position, now + waitMs) : position.ahead;
  return { kind: 'queued', forecastMs: waitMs, ahead, heldBy, order };
}

function bucketRefusalOf(
  bucket: Bucket,
  admission: OrderedAdmission,
  now: number,
): Extract<AdmitReply, { kind: 'refused' }> | null {
  const { kept, maxWaitMs } = admission;
  const position = positionFor(bucket, admission);
  if (kept !== null) {
    const { waitMs, heldBy } = forecastReturning(bucket, position, now);
    const retryInMs = Math.max(waitMs, kept.from - now);
    if (retryInMs <= Math.max(maxWaitMs, returnGraceMs)) return null;
    return { kind: 'refused', reason: 'wait_too_long', heldBy, retryInMs, ahead: position.ahead };
  }
  const waiting = position.lane?.line.size ?? 0;
  const isFull = waiting >= admission.maxQueued;
  // Where the line is full, no call can enter before a ticket has left it, however urgent the call is.
  const leaveFirst = isFull ? Math.min(waiting, 1) : 0;
  const behind = { ...position, ahead: Math.max(leaveFirst, position.ahead) };
  const { waitMs, heldBy } = isFull
    ? forecastAt(bucket, behind, now)
    : forecastWithin(bucket, { position: behind, withinMs: maxWaitMs }, now);
  const ahead = aheadInLane(bucket, behind, now + waitMs);
  if (isFull && (waiting > 0 || waitMs > 0)) {
    return { kind: 'refused', reason: 'queue_full', heldBy: 'queue', retryInMs: waitMs, ahead };
  }
  if (waitMs <= maxWaitMs) return null;
  if (isBackground(position.key) && dueWithinMs(bucket, position, now) <= maxWaitMs) return null;
  return { kind: 'refused', reason: 'wait_too_long', heldBy, retryInMs: waitMs, ahead };
}

function merge(first: Effects, second: Effects): Effects {
  return { grants: [...first.grants, ...second.grants], nextAt: second.nextAt };
}
