/**
 * What a caller holds that may send: the bucket's grant and the ceiling's place, ended together and once.
 * Refuses to own: taking them (`charging.ts`). Keeps: a lease is settled once (8), what was not sent gives its place back.
 */
import type { TakeReply } from '../limiter/ceilings.ts';
import type { Grant, Lesson, Settlement } from '../limiter/limiter.ts';
import type { DeskParts } from './desk-parts.ts';
import type { Holder } from './holder.ts';
import type { Hopeless } from './hopeless.ts';
import type { Entry, Lease } from './ticket.ts';

export function leaseOf(
  { clock, limiter, ceilings, background }: DeskParts,
  hopeless: Hopeless,
  holder: Holder,
  grant: Grant,
  taken: Extract<TakeReply, { kind: 'taken' }>,
): Lease {
  let settled = false;
  holder.hadLease = true;
  return {
    grant,
    ceiling: taken.state,
    grantedAt: clock.monotonic(),
    holds: () => clock.monotonic() < grant.expiresAt,
    learn: (lesson: Lesson) => {
      if (!settled) background(limiter().learn(grant, lesson));
    },
    settle: (settlement: Settlement, lesson: Lesson | null) => {
      if (settled) return;
      settled = true;
      holder.done = settlement.kind === 'succeeded';
      const isSent = settlement.kind !== 'dropped' && settlement.kind !== 'returned';
      if (!isSent) background(ceilings.giveBack(holder.entry.ceiling, taken.place));
      background(limiter().settle(grant, settlement, lesson));
      const stillMs = standstillMs(settlement, holder.entry);
      if (stillMs > 0) hopeless.onStandstill(grant.bucket, grant.lane, stillMs);
      const points = lesson?.feedback.requestedCost ?? null;
      if (points !== null) hopeless.onCostKnown(holder, points);
    },
  };
}

/** How long the lane of a call that ended like this sends nothing, milliseconds. */
function standstillMs(settlement: Settlement, { admission }: Entry): number {
  if (settlement.kind === 'throttled' || settlement.kind === 'returned') return settlement.sleepMs;
  return settlement.kind === 'unknown' && admission.maxInFlight === 1 ? admission.leaseMs : 0;
}
