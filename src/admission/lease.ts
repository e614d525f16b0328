/**
 * The lease of a call that may be sent: the bucket's grant and the ceiling's slot, which end together and once.
 *
 * Does not own: taking grant and slot (`ceiling-gate.ts`).
 * Keeps: a lease is settled once (8); a call that was not sent gives its slot back (9).
 */
import type { CeilingState } from '../limiter/policy/ceiling.policy.ts';
import type { BucketKey, Grant, Lesson, Settlement } from '../limiter/limiter.ts';
import type { TakenSlot } from './ceiling-slots.ts';
import type { LateRefusals } from './late-refusals.ts';
import type { AdmissionParts, Lease } from './ticket.ts';
import type { QueuedCall } from './queued-call.ts';

/** A grant and the call that it is for. */
export interface GrantedCall {
  readonly call: QueuedCall;
  readonly grant: Grant;
}

export interface LeaseParts extends AdmissionParts {
  readonly lateRefusals: LateRefusals;
  /** The limiter has learned from a response of a call whose default ceilings may yield. */
  readonly onAnswer: (bucket: BucketKey) => void;
}

export class AdmittedLease implements Lease {
  readonly grant: Grant;
  readonly #parts: LeaseParts;
  readonly #call: QueuedCall;
  readonly #slot: TakenSlot;
  #isSettled = false;

  constructor(parts: LeaseParts, { call, grant }: GrantedCall, slot: TakenSlot) {
    this.grant = grant;
    this.#parts = parts;
    this.#call = call;
    this.#slot = slot;
  }

  get ceiling(): CeilingState | null {
    const { ceiling, reply } = this.#slot;
    const left = ceiling.left?.perMinute ?? 0;
    return left === 0 ? reply.state : withPlaces(reply.state, left);
  }

  holds(): boolean {
    return this.#parts.clock.monotonic() < this.grant.expiresAt;
  }

  learn(lesson: Lesson): void {
    if (!this.#isSettled) this.#learned(this.#parts.limiter.learn(this.grant, lesson));
  }

  #learned(work: Promise<void>): void {
    const { detached, onAnswer } = this.#parts;
    const mayYield = this.#call.request.yielded !== null;
    detached(mayYield ? work.then(() => onAnswer(this.grant.bucket)) : work);
  }

  settle(settlement: Settlement, lesson: Lesson | null): void {
    if (this.#isSettled) return;
    this.#isSettled = true;
    const { limiter, ceilings, detached, leaseMs, lateRefusals } = this.#parts;
    const { grant } = this;
    const call = this.#call;
    const { ceiling, reply } = this.#slot;
    const ticketEnded = settlement.kind === 'succeeded';
    if (call.state.kind === 'sent') call.become({ kind: 'sent', ticketEnded });
    const isSent = settlement.kind !== 'dropped' && settlement.kind !== 'returned';
    if (!isSent) detached(ceilings.giveSlotBack(ceiling, reply.slot));
    this.#learned(limiter.settle(grant, settlement, lesson));
    const stillMs = standstillMs(settlement, call, leaseMs);
    if (stillMs > 0) lateRefusals.onStandstill(grant.bucket, grant.lane, stillMs);
    const points = lesson?.feedback.requestedCost ?? null;
    if (points !== null) lateRefusals.onCostKnown(call, points);
  }
}

/** The client is told of its workspace's ceiling, not of the part that the call may use. */
const withPlaces = (state: CeilingState | null, more: number): CeilingState | null =>
  state === null ? null : { ...state, limit: state.limit + more, remaining: state.remaining + more };

/** How long the lane of a call sends nothing after this settlement, milliseconds. */
function standstillMs(settlement: Settlement, { request }: QueuedCall, leaseMs: number): number {
  if (settlement.kind === 'throttled' || settlement.kind === 'returned') return settlement.sleepMs;
  return settlement.kind === 'unknown' && request.admission.maxInFlight === 1 ? leaseMs : 0;
}
