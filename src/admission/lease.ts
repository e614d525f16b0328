/**
 * What a caller holds that may send: the bucket's grant and the ceiling's slot, ended together and once.
 * Refuses to own: taking them (`ceiling-gate.ts`). Keeps: a lease is settled once (8), what was not sent gives its slot back.
 */
import type { CeilingRef, TakeReply } from '../limiter/ceilings.ts';
import type { Grant, Lesson, Settlement } from '../limiter/limiter.ts';
import type { EarlyRejection } from './early-rejection.ts';
import { onSlotBack } from './lanes.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import type { Lease } from './ticket.ts';

export interface Passed {
  readonly call: QueuedCall;
  readonly grant: Grant;
  readonly taken: Extract<TakeReply, { kind: 'taken' }>;
  /** The limits under which the slot was taken. */
  readonly ceiling: CeilingRef;
}

export function createLease(
  parts: AdmissionParts,
  rejection: EarlyRejection,
  { call, grant, taken, ceiling }: Passed,
): Lease {
  const { clock, limiter, ceilings, background } = parts;
  let settled = false;
  return {
    grant,
    ceiling: taken.state,
    holds: () => clock.monotonic() < grant.expiresAt,
    learn: (lesson: Lesson) => {
      if (!settled) background(limiter.learn(grant, lesson));
    },
    settle: (settlement: Settlement, lesson: Lesson | null) => {
      if (settled) return;
      settled = true;
      const forgotten = settlement.kind === 'succeeded';
      if (call.state.kind === 'sent') call.become({ kind: 'sent', forgotten });
      const isSent = settlement.kind !== 'dropped' && settlement.kind !== 'returned';
      if (!isSent) {
        background(ceilings.giveBack(ceiling, taken.slot));
        onSlotBack(call.lane);
      }
      background(limiter.settle(grant, settlement, lesson));
      const stillMs = standstillMs(settlement, call, parts.leaseMs);
      if (stillMs > 0) rejection.onStandstill(grant.bucket, grant.lane, stillMs);
      const points = lesson?.feedback.requestedCost ?? null;
      if (points !== null) rejection.onCostKnown(call, points);
    },
  };
}

/** How long the lane of a call that ended like this sends nothing, milliseconds. */
function standstillMs(settlement: Settlement, { request }: QueuedCall, leaseMs: number): number {
  if (settlement.kind === 'throttled' || settlement.kind === 'returned') return settlement.sleepMs;
  return settlement.kind === 'unknown' && request.admission.maxInFlight === 1 ? leaseMs : 0;
}
