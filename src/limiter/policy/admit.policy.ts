/**
 * A call asks to enter its lane: it is granted, waits, or is refused at once with the time after which it may come again.
 * Part of the specification in `scheduler.policy.ts`.
 */
import { returnGraceMs, type Reserving } from '../limiter.ts';
import { isBackground, type ReplicaId } from '../../ids.ts';
import { noteEntered } from './background.policy.ts';
import {
  type AdmitReply,
  type Bucket,
  orderUnit,
  type Reservation,
  type ReserveReply,
  sequencePerMs,
  type StoredAdmission,
  type Ticket,
} from './bucket-state.policy.ts';
import { applyLaneSetting, callsAhead, enqueue, laneFor } from './lanes.policy.ts';
import { cappedCosts, knownCosts } from './costs.policy.ts';
import {
  aheadInLane,
  dueWithinMs,
  forecastAt,
  forecastReturning,
  goesAtOnce,
  positionOf,
  type LanePosition,
} from './forecast.policy.ts';
import { applySettings, isUnder } from './learning.policy.ts';
import { forgetUnused, keep, nextSlotAt, reservationOf } from './reservations.policy.ts';

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
export function enterOrRefuse(
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
export function replyFor(bucket: Bucket, ticket: Ticket, now: number): AdmitReply {
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
