/** How many slots of a ceiling are kept for reservations, in all buckets of a log: a ceiling holds over all of them. Pure. */
import type { BucketKey } from '../../ids.ts';
import type { Arrived, KeptSlots } from '../limiter.ts';
import { due } from '../policy/reservations.policy.ts';
import type { SharedState } from './state.ts';

/** What the call of this bucket leaves; `null` = nothing. In its own bucket the reservations of later calls do not concern it. */
export function keptSlotsIn(
  { buckets, reserving }: SharedState,
  { ceiling, ticket: id, bucket: own }: Arrived & { readonly bucket: BucketKey },
  now: number,
): KeptSlots | null {
  const ticket = buckets.get(own)?.tickets.get(id);
  if (ticket?.reservation !== undefined) return null;
  let count = 0;
  let until: number | null = null;
  for (const key of reserving) {
    const bucket = buckets.get(key);
    for (const kept of bucket === undefined ? [] : due(bucket, now)) {
      if (kept.ceiling !== ceiling || (key === own && ticket !== undefined && kept.order > ticket.order))
        continue;
      count += 1;
      until = Math.min(until ?? kept.until, kept.until);
    }
  }
  return until === null ? null : { count, forMs: Math.max(1, until - now) };
}
