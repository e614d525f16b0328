/** A call of this replica in a log, from its admission to its end: its states, and what is kept of it afterwards. */
import type { Costs } from '../../call.ts';
import type { Clock } from '../../clock.ts';
import type { BucketKey, LeaseToken } from '../../ids.ts';
import type { Admission, AdmissionReply, BucketSetting, Grant, Settlement } from '../limiter.ts';
import type { BucketEvent } from '../policy/bucket-events.ts';
import type { LaneGuard } from './lane-guard.ts';
import type { SharedState, UsedUnits } from './state.ts';

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

/**
 * A settlement that is said again: what is left of the delays that it named.
 * @param now monotonic milliseconds
 */
function saidAgain({ settlement, at }: EndedCall, now: number): Settlement {
  const left = (ms: number): number => Math.max(0, ms - (now - at));
  switch (settlement.kind) {
    case 'throttled':
      return { ...settlement, closeMs: left(settlement.closeMs), sleepMs: left(settlement.sleepMs) };
    case 'returned':
      return { ...settlement, sleepMs: left(settlement.sleepMs) };
    case 'succeeded':
    case 'dropped':
    case 'unknown':
      return settlement;
  }
}

/** True when the entry that granted the call may have been lost. */
export const isGrantLost = ({ grantedBy }: EndedCall, keptUpTo: number): boolean =>
  grantedBy !== null && grantedBy > keptUpTo;

/** The ticket waits again. */
export const isRequeued = (settlement: Settlement): boolean =>
  settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);

/** The settlement for a call that has left meanwhile: no ticket goes back to its lane. */
export function withoutRequeue(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}

// What is remembered of calls that ended: the log may lose what it was told, and is told it again then

/** How long it is remembered how a call ended: longer than the tail that a failover loses. Milliseconds. */
const memoryMs = 10_000;

export class EndedCalls {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #ended = new Map<LeaseToken, EndedCall>();
  /** Usage that the log may not have counted: it went away again before that was heard. */
  #unreported: readonly { readonly used: UsedUnits; readonly at: number }[] = [];

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock;
  }

  note(lease: LeaseToken, ended: Omit<EndedCall, 'at'>): void {
    this.#ended.set(lease, { ...ended, at: this.#clock.monotonic() });
  }

  has(lease: LeaseToken): boolean {
    return this.#ended.has(lease);
  }

  /** The settlement of a lease as it is to be said now; `null` = it did not end here, or too long ago. */
  settlementOf(lease: LeaseToken): Settlement | null {
    const ended = this.#ended.get(lease);
    return ended === undefined ? null : saidAgain(ended, this.#clock.monotonic());
  }

  /** How a lease ends behind which no call stands here any more. */
  endOf(lease: LeaseToken): Settlement {
    const settlement = this.settlementOf(lease);
    // It is not known any more how: its call may have been sent.
    return settlement === null ? { kind: 'succeeded', spent: null } : withoutRequeue(settlement);
  }

  /** What was used while its grant, or its end, was lost: units that the state does not count, and for how long it closed. */
  takeLost({ buckets }: SharedState, keptUpTo: number): UsedUnits[] {
    const now = this.#clock.monotonic();
    const lost: UsedUnits[] = this.#unreported.map(({ used, at }) => ({
      ...used,
      closedMs: Math.max(0, used.closedMs - (now - at)),
    }));
    this.#unreported = [];
    for (const [lease, ended] of this.#ended) {
      const { bucket, setting, used } = ended;
      if (!isGrantLost(ended, keptUpTo) || buckets.get(bucket)?.leases.has(lease) === true) continue;
      this.#ended.delete(lease);
      const closing = closingBy(saidAgain(ended, now));
      if (Object.keys(used).length > 0 || closing.closedMs > 0)
        lost.push({ bucket, setting, costs: used, ...closing });
    }
    return lost;
  }

  /** The log went away before this was heard, which was said at this time. */
  keepUnreported(used: readonly UsedUnits[], at: number): void {
    this.#unreported = [...this.#unreported, ...used.map((each) => ({ used: each, at }))];
  }

  forgetOld(): void {
    const since = this.#clock.monotonic() - memoryMs;
    for (const [lease, { at }] of this.#ended) {
      if (at > since) return;
      this.#ended.delete(lease);
    }
  }
}
