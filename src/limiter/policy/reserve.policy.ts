/**
 * A refused call keeps its position: which time its client is told, and until when it may come back. Part of the specification in
 * `scheduler.policy.ts`.
 *
 * Keeps: each refused call gets a time of its own, also those that were refused together (13); a client that asks too early is told the
 * same time again, so that it does not lose its turn by asking.
 */
import type { ReserveReply, StoredAdmission } from './bucket-events.ts';
import { sequencePerMs, type Bucket, type Reservation } from './bucket-state.policy.ts';
import { orderedIn, positionFor } from './admit.policy.ts';
import { aheadInLane, forecastAgain, forecastAt } from './forecast.policy.ts';
import type { Reserving } from '../limiter.ts';
import { forgetUnused, keep, nextSlotAt } from './reservations.policy.ts';

/** Times that are told twice differ by the ways of their messages: a later one counts if it is later than this. Milliseconds. */
const sameMs = 250;
/** Arrivals at several replicas that are closer than this may come to the log in any order. Milliseconds. */
const momentMs = 1_000;

/** The admission that was refused, and what it keeps. */
export interface Refused {
  readonly admission: StoredAdmission;
  readonly reserving: Reserving;
}

/** `null`: nothing is kept. */
export function reserve(bucket: Bucket, { admission, reserving }: Refused, now: number): ReserveReply | null {
  const { ceiling, waitMs, lastsMs, begins, name = admission.ticket } = reserving;
  forgetUnused(bucket, now);
  const asked = orderedIn(bucket, admission, now);
  const { kept, costs } = asked;
  if (kept === null && !begins) return null;
  const order = kept?.order ?? behindReserved(bucket, asked);
  const position = positionFor(bucket, { ...asked, order });
  const id = kept?.id ?? (bucket.reservations.has(name) ? admission.ticket : name);
  const expected =
    kept === null ? forecastAt(bucket, position, now) : forecastAgain(bucket, { position, id }, now);
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
