/** A call of this replica in a log, from its admission to its end: its states, and what is kept of it afterwards. Types only. */
import type { Costs } from '../../call.ts';
import type { BucketKey, LeaseToken } from '../../ids.ts';
import type { Admission, AdmissionReply, BucketSetting, Grant, Settlement } from '../limiter.ts';
import type { BucketEvent } from '../policy/bucket-events.ts';
import type { LaneGuard } from './lane-guard.ts';
import type { UsedUnits } from './state.ts';

export type SettleEvent = Extract<BucketEvent, { kind: 'settle' }>;

/** Which entry made a grant. */
export type Origin =
  | { readonly kind: 'log'; readonly sequence: number }
  /** One that this replica made for itself while the log was away: no other replica knows it. */
  | { readonly kind: 'alone' };

/** A grant that this replica goes by. */
export interface HeldGrant {
  /** As the call gets it, and settles it. */
  readonly grant: Grant;
  /** The lease in the state. Another one than the call's where the log lost that one and granted the call anew meanwhile. */
  readonly lease: LeaseToken;
  readonly origin: Origin;
  /** The guard that was asked for the lane; `null` = the lane has none. It knows the call by the lease of `grant`. */
  readonly guard: LaneGuard | null;
}

export type OwnCallState =
  /** Asks to be admitted, and has no reply: it may be refused. */
  | { readonly kind: 'entering' }
  /** Stands in its lane. */
  | { readonly kind: 'waiting' }
  /** Granted; the guard of its lane is being asked. */
  | { readonly kind: 'guarding'; readonly held: HeldGrant }
  /** It has its grant, and may be under way. */
  | { readonly kind: 'sent'; readonly held: HeldGrant }
  /** This settlement puts it back to its position, when the log has it. */
  | { readonly kind: 'returning'; readonly settle: SettleEvent };

export interface OwnCall {
  /** With the latest settings. Its position is that of its arrival until the log has given it an order. */
  admission: Admission;
  state: OwnCallState;
  /** Takes the reply to its admission; `null` = has it. */
  answer: ((reply: AdmissionReply) => void) | null;
}

/**
 * How a lease ended. Kept for a while, because the log may lose what it was told. It has nothing of the call itself: thousands of them are
 * kept, and what outlives its call is copied by every collection of young objects.
 */
export interface EndedCall {
  readonly bucket: BucketKey;
  readonly setting: BucketSetting;
  /** Sequence of the entry that made the grant; `null` = this replica made it while the log was away. */
  readonly grantedBy: number | null;
  readonly settlement: Settlement;
  /** What it used of the bucket. */
  readonly used: Costs;
  /** Monotonic milliseconds. */
  readonly at: number;
}

type Closing = Pick<UsedUnits, 'closedMs' | 'closesCredential'>;

/** What the end of a call closed, and for how long. */
export function closingBy(settlement: Settlement): Closing {
  if (settlement.kind !== 'throttled') return { closedMs: 0 };
  const { closeMs: closedMs, closesCredential } = settlement;
  return closesCredential === true ? { closedMs, closesCredential } : { closedMs };
}

/** What a call used that ended like this: nothing, if it was not sent or not run. */
export function usedBy(costs: Costs, settlement: Settlement): Costs {
  if (settlement.kind === 'succeeded')
    return settlement.spent === null ? costs : { ...costs, ...settlement.spent };
  return settlement.kind === 'unknown' ? costs : {};
}
