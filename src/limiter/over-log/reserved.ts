/** Reservations of a ceiling, and the slots that are kept for them, in all buckets of a log: a ceiling holds over all of them. Pure. */
import { isBackground, type BucketKey, type CeilingKey, type TicketId } from '../../ids.ts';
import type { KeptSlots } from '../limiter.ts';
import { countUnder, due } from '../policy/reservations.policy.ts';
import type { SharedState } from './state.ts';

/** Slots of those who are about to leave are asked for again after so long. Milliseconds. */
const askAgainMs = 1_000;
/** A slot comes free earlier than its time is told, by the way of the refusal through the log: it is left free from then on. Milliseconds. */
const freeBeforeMs = 250;

/** A call that asks its ceiling for a slot. */
interface AskingCall {
  readonly bucket: BucketKey;
  readonly ceiling: CeilingKey;
  readonly ticket: TicketId;
}

/** What the call of this bucket leaves; `null` = nothing. In its own bucket the reservations of later calls do not concern it. */
export function keptSlotsIn(
  { buckets, reserving }: SharedState,
  { ceiling, ticket: id, bucket: own }: AskingCall,
  now: number,
): KeptSlots | null {
  const ticket = buckets.get(own)?.tickets.get(id);
  if (ticket?.reservation !== undefined) return null;
  let count = 0;
  let until: number | null = null;
  for (const key of reserving) {
    const bucket = buckets.get(key);
    for (const kept of bucket === undefined ? [] : due(bucket, now + freeBeforeMs)) {
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
