/**
 * Reservations: positions that are kept for clients of refused calls, who come back at the time that they were told. A reservation is no
 * ticket: nothing of its call is in it, no replica owns it, and no call waits in its lane meanwhile. Part of the specification in
 * `scheduler.policy.ts`.
 *
 * From the told time on, and before that for as long as its units take to drain, the calls that come after a reservation leave its room
 * free. So one that nobody comes back for costs others the room of one call, for as long as it is kept, and nothing where there is more.
 *
 * Does not own: what is told, and who goes first of those that came back (`scheduler.policy.ts`).
 */
import type { MeterName } from '../../call.ts';
import { isBackground, type CeilingKey, type LaneKey, type TicketId } from '../../ids.ts';
import {
  type Bucket,
  type StoredAdmission,
  type Reservation,
  type Ticket,
  addCosts,
  isUnseen,
  serviceCost,
} from './bucket-state.policy.ts';
import { ceilingWindowMs } from './ceiling.policy.ts';
import { costEntries } from './meter.policy.ts';

/** What the estimate of a call's costs may grow by until its client comes back, as a share, without the call being a larger one. */
const estimateGrowth = 0.1;
/**
 * Clients that come back are so late, about: whoever has the slot behind one that is later waits for it, or is told another time.
 * Milliseconds.
 */
const usualLatenessMs = 250;
/** A reservation counts as dueReservations this much earlier: times that were added up are not exact. Milliseconds. */
const roundingMs = 1;

/** What the call comes back for; `null` = nothing is kept for it, or it takes more than is kept. */
export function reservationOf(
  bucket: Bucket,
  { reservation: id, lane, costs, document }: StoredAdmission,
  now: number,
): Reservation | null {
  const kept = id === undefined ? undefined : bucket.reservations.get(id);
  if (kept === undefined || kept.lane !== lane || kept.ticket !== null || kept.until < now) return null;
  // A guess may have grown by more, and the call is the same.
  const stated = isUnseen(bucket, document) ? { ...costs, cost: 0 } : costs;
  const isLarger = costEntries(stated).some(
    ([name, units]) => units > (kept.costs[name] ?? 0) * (1 + estimateGrowth),
  );
  return isLarger ? null : kept;
}

/** Keeps the reservation, or what has changed of it. */
export function keep(bucket: Bucket, reservation: Reservation): void {
  const { id, from, costs } = reservation;
  bucket.reservations.set(id, reservation);
  bucket.reservationsDue.set(id, from - serviceCost(bucket, costs));
}

/** The call that came back has left its line without being sent: its client may come again. */
export function release(bucket: Bucket, id: TicketId): void {
  const kept = bucket.reservations.get(id);
  if (kept !== undefined) bucket.reservations.set(id, { ...kept, ticket: null });
}

export function forgetReservation(bucket: Bucket, id: TicketId): void {
  bucket.reservations.delete(id);
  bucket.reservationsDue.delete(id);
}

/** Forgets those for which nobody came back in time. */
export function forgetUnused(bucket: Bucket, now: number): void {
  for (const { id, ticket, until } of dueReservations(bucket, now))
    if (ticket === null && until < now) forgetReservation(bucket, id);
}

/** Those whose room is left free now, in the order in which they became due. */
export const dueReservations = (bucket: Bucket, now: number): Reservation[] =>
  bucket.reservationsDue
    .between(-Infinity, now + roundingMs)
    .flatMap((id) => bucket.reservations.get(id) ?? []);

/** When the next reservation is dueReservations, or the first of those who came back too early has its turn; `null` = nothing of this is to come. */
export function nextTurn(bucket: Bucket, now: number): number | null {
  let first = bucket.reservationsDue.nextScore(now + roundingMs);
  for (const { ticket, from } of dueReservations(bucket, now))
    if (ticket !== null && from > now) first = Math.min(first ?? from, from);
  return first;
}

/**
 * When the ceiling has a slot for one more reservation: a window after the call has left that uses the slot before it.
 * @param perMinute slots of the ceiling
 */
export function nextSlotAt(bucket: Bucket, ceiling: CeilingKey, perMinute: number): number | null {
  const times: number[] = [];
  for (const id of bucket.reservationsDue.names()) {
    const kept = bucket.reservations.get(id);
    if (kept?.ceiling === ceiling) times.push(kept.from);
  }
  const before = times[times.length - perMinute];
  return before === undefined ? null : before + ceilingWindowMs + usualLatenessMs;
}

/**
 * What the ticket's call leaves free now, and until when it is as much at most (`until`: `null` = until somebody has left); `null` = nothing.
 * Of its own lane only the reservations of earlier calls concern it.
 */
export function keptFreeBy(bucket: Bucket, { id, lane, order }: Ticket, now: number) {
  const units = new Map<MeterName, number>();
  let until: number | null = null;
  for (const kept of dueReservations(bucket, now)) {
    if (kept.ticket === id || goesAfter(kept, { key: lane, order })) continue;
    addCosts(units, kept.costs);
    if (kept.ticket === null) until = Math.min(until ?? kept.until, kept.until);
  }
  return units.size === 0 ? null : { units, until };
}

/** Reservations that go before a call. */
export interface ReservedAhead {
  /** How many of them are in the call's own lane. */
  readonly inLane: number;
  readonly units: ReadonlyMap<MeterName, number>;
}

/** Where a call stands: in its lane, and there by its order. `own`: what is kept for itself; `null` = nothing. */
export interface Standing {
  readonly key: LaneKey;
  readonly order: number;
  readonly own: TicketId | null;
}

/** Of the `count` reservations that are dueReservations first, those that go before the call. Where somebody came back, a ticket counts already. */
export function reservedAhead(bucket: Bucket, { key, order, own }: Standing, count: number): ReservedAhead {
  const units = new Map<MeterName, number>();
  let inLane = 0;
  for (const id of bucket.reservationsDue.names(count)) {
    const kept = bucket.reservations.get(id);
    if (kept === undefined || kept.ticket !== null || id === own) continue;
    if (goesAfter(kept, { key, order })) continue;
    if (kept.lane === key) inLane += 1;
    addCosts(units, kept.costs);
  }
  return { inLane, units };
}

/** Of its own lane the reservations of later calls do not concern a call, and those of the background concern the background only. */
const goesAfter = (kept: Reservation, { key, order }: Pick<Standing, 'key' | 'order'>): boolean =>
  kept.lane === key ? kept.order > order : isBackground(kept.lane) && !isBackground(key);

/** How many reservations of the ceiling the bucket has. */
export function countUnder({ reservations }: Bucket, ceiling: CeilingKey, now: number): number {
  let count = 0;
  for (const kept of reservations.values())
    if (kept.ceiling === ceiling && (kept.ticket !== null || kept.until >= now)) count += 1;
  return count;
}
