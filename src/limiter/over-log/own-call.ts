/** A call of this replica in a log, from its admission to its end: its states, and how it ends. */
import type { Costs } from '../../call.ts';
import type { LeaseToken } from '../../ids.ts';
import type { Admission, AdmissionReply, Grant, Settlement } from '../limiter.ts';
import type { BucketEvent } from '../policy/bucket-state.policy.ts';
import type { LaneGuard } from './lane-guard.ts';

export type SettleEvent = Extract<BucketEvent, { kind: 'settle' }>;

/** A grant that this replica goes by. */
export interface HeldGrant {
  /** As the call gets it, and settles it. */
  readonly grant: Grant;
  /** The lease in the state. Another one than the call's where the log lost that one and granted the call anew meanwhile. */
  readonly lease: LeaseToken;
  /** This replica made it for itself while the log was away. */
  readonly isMadeAlone: boolean;
  /** The guard that was asked for the lane; `null` = the lane has none. It knows the call by the lease of `grant`. */
  readonly guard: LaneGuard | null;
}

export type OwnCallState =
  /** Asks to be admitted, and has no reply: it may be refused. */
  | { readonly kind: 'entering' }
  /**
   * Stands in its lane, or has said a settlement that puts it there. `putBack`: that settlement; `null` = it had no grant. Where the log has
   * not heard it, or has lost it, the state still has the grant.
   */
  | { readonly kind: 'waiting'; readonly putBack: SettleEvent | null }
  /** Granted; the guard of its lane is being asked. */
  | { readonly kind: 'guarding'; readonly held: HeldGrant }
  /** It has its grant, and may be under way. */
  | { readonly kind: 'sent'; readonly held: HeldGrant };

export interface OwnCall {
  /** With the latest settings. Its position is that of its arrival until the log has given it an order. */
  admission: Admission;
  state: OwnCallState;
  /** Takes the reply to its admission; `null` = has it. */
  answer: ((reply: AdmissionReply) => void) | null;
}

export function answer(call: OwnCall, reply: AdmissionReply): void {
  call.answer?.(reply);
  call.answer = null;
}

export function keepPosition(call: OwnCall, order: number): void {
  if (call.admission.position.kind === 'arrival')
    call.admission = { ...call.admission, position: { kind: 'kept', order } };
}

/** The call is under way, and the state has this lease for it now. */
export function adoptLease(call: OwnCall, lease: LeaseToken, isMadeAlone: boolean): void {
  const { state } = call;
  if (state.kind === 'sent' || state.kind === 'guarding')
    call.state = { kind: state.kind, held: { ...state.held, lease, isMadeAlone } };
}

export const settleEvent = (lease: LeaseToken, settlement: Settlement): SettleEvent => ({
  kind: 'settle',
  lease,
  settlement,
  lesson: null,
});

/** The ticket waits again. */
export const isRequeued = (settlement: Settlement): boolean =>
  settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);

/** The settlement for a call that has left meanwhile: no ticket goes back to its lane. */
export function withoutRequeue(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}

/** What a call used that ended like this: nothing, if it was not sent or not run. */
export function usedBy(costs: Costs, settlement: Settlement): Costs {
  if (settlement.kind === 'succeeded') return { ...costs, ...settlement.spent };
  return settlement.kind === 'unknown' ? costs : {};
}
