/** What a state of the shared limiter shows of itself, at one time. Pure: it changes nothing. */
import {
  isBackground,
  type BucketKey,
  type CallerKey,
  type CeilingKey,
  type LaneKey,
  type TicketId,
} from '../../ids.ts';
import type { BucketSnapshot, CallerNow, KeptSlots, MeterSnapshot } from '../limiter.ts';
import { allWaiting, type Bucket, closedMs, maxInFlightOf } from '../policy/bucket-state.policy.ts';
import { levelAt } from '../policy/meter.policy.ts';
import { countUnder, dueReservations } from '../policy/reservations.policy.ts';
import type { SharedState } from './state.ts';

/** Meters of which no limit is known are left out. */
export const snapshotOf = (key: BucketKey, bucket: Bucket, now: number): BucketSnapshot => ({
  bucket: key,
  closedMs: closedMs(bucket, now),
  waiting: allWaiting(bucket),
  inFlight: bucket.leases.size,
  reserved: bucket.reservations.size,
  maxInFlightTotal: maxInFlightOf(bucket, now),
  meters: [...bucket.meters.values()].flatMap((meter): MeterSnapshot[] => {
    const { name, limit, windowMs, log, reported } = meter;
    if (limit === null) return [];
    const shown = { meter: name, limit, level: levelAt(meter, now), windowMs, isReported: reported !== null };
    return [log === null ? shown : { ...shown, counts: log.counts }];
  }),
});

/** The calls of each caller that calls of the lane name; those that name none are left out. */
export function callersIn({ tickets }: Bucket, key: LaneKey): CallerNow[] {
  const callers = new Map<CallerKey, { caller: CallerKey; waiting: number; inFlight: number }>();
  for (const { caller, lane, lease } of tickets.values()) {
    if (caller === undefined || lane !== key) continue;
    const counted = callers.get(caller) ?? { caller, waiting: 0, inFlight: 0 };
    counted[lease === null ? 'waiting' : 'inFlight'] += 1;
    callers.set(caller, counted);
  }
  return [...callers.values()];
}

// Reservations of a ceiling, and the slots that are kept for them, in all buckets of a log: a ceiling holds over all of them

/** Slots of those who are about to leave are asked for again after so long. Milliseconds. */
const askAgainMs = 1_000;
/** A slot comes free earlier than its time is told, by the way of the refusal through the log: it is left free from then on. Milliseconds. */
const freeBeforeMs = 250;

/**
 * What a call of the bucket `own` leaves of its ceiling; `null` = nothing. In its own bucket the reservations of later calls do not
 * concern it.
 */
export function keptSlotsIn(
  { buckets, reserving }: SharedState,
  {
    ceiling,
    ticket: id,
    bucket: own,
  }: { readonly bucket: BucketKey; readonly ceiling: CeilingKey; readonly ticket: TicketId },
  now: number,
): KeptSlots | null {
  const ticket = buckets.get(own)?.tickets.get(id);
  if (ticket?.reservation !== undefined) return null;
  let count = 0;
  let until: number | null = null;
  for (const key of reserving) {
    const bucket = buckets.get(key);
    for (const kept of bucket === undefined ? [] : dueReservations(bucket, now + freeBeforeMs)) {
      if (kept.ceiling !== ceiling || (key === own && ticket !== undefined && kept.order > ticket.order))
        continue;
      if (isBackground(kept.lane) && ticket !== undefined && !isBackground(ticket.lane)) continue;
      count += 1;
      // Somebody who has come back for it leaves soon.
      const end = kept.ticket === null ? kept.until : now + askAgainMs;
      until = Math.min(until ?? end, end);
    }
  }
  return until === null ? null : { count, forMs: Math.max(1, until - now) };
}

/** How many reservations of the ceiling are kept. */
export function reservedIn({ buckets, reserving }: SharedState, ceiling: CeilingKey, now: number): number {
  let count = 0;
  for (const key of reserving) {
    const bucket = buckets.get(key);
    if (bucket !== undefined) count += countUnder(bucket, ceiling, now);
  }
  return count;
}
