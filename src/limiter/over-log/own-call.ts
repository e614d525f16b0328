/** A call of this replica in a log, from its admission to its end: its states, and what is kept of it afterwards. */
import type { Costs } from '../../call.ts';
import type { Clock } from '../../clock.ts';
import type { BucketKey, LeaseToken } from '../../ids.ts';
import type { Admission, AdmissionReply, BucketSetting, Grant, Settlement } from '../limiter.ts';
import type { BucketEvent } from '../policy/bucket-events.ts';
import type { LaneGuard } from './lane-guard.ts';
import type { SharedState, UsedUnits } from './state.ts';

export type SettleEvent = Extract<BucketEvent, { kind: 'settle' }>;

/** A grant that this replica goes by. */
export interface HeldGrant {
  /** As the call gets it, and settles it. */
  readonly grant: Grant;
  /** The lease in the state. Another one than the call's where the log lost that one and granted the call anew meanwhile. */
  readonly lease: LeaseToken;
  /** Sequence of the entry that made the grant; `null` = this replica made it for itself while the log was away. */
  readonly grantedBy: number | null;
  /** The guard that was asked for the lane; `null` = the lane has none. It knows the call by the lease of `grant`. */
  readonly guard: LaneGuard | null;
}

export type OwnCallState =
  /** Asks to be admitted, and has no reply: it may be refused. */
  | { readonly kind: 'entering' }
  /** Stands in its lane, or has said a settlement that puts it there. */
  | { readonly kind: 'waiting' }
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

// What is remembered of calls that ended: the log may lose what it was told, and is told it again then

/** How long it is remembered how a call ended: longer than the tail that a failover loses. Milliseconds. */
const memoryMs = 10_000;

/**
 * How a lease ended. It has nothing of the call itself: thousands of them are kept, and what outlives its call is copied by every collection
 * of young objects.
 */
interface EndedCall extends Pick<UsedUnits, 'bucket' | 'setting' | 'costs'> {
  readonly grantedBy: number | null;
  readonly settlement: Settlement;
  /** Monotonic milliseconds. */
  readonly at: number;
}

export class EndedCalls {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #ended = new Map<LeaseToken, EndedCall>();

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock;
  }

  note(
    { lease, grantedBy }: HeldGrant,
    {
      bucket,
      setting,
      costs,
    }: { readonly bucket: BucketKey; readonly setting: BucketSetting; readonly costs: Costs },
    settlement: Settlement,
  ): void {
    const at = this.#clock.monotonic();
    this.#ended.set(lease, { bucket, setting, costs: usedBy(costs, settlement), grantedBy, settlement, at });
  }

  /** The settlement of a lease as it is to be said now, with what is left of its delays; `null` = it did not end here, or too long ago. */
  settlementOf(lease: LeaseToken): Settlement | null {
    const { settlement, at } = this.#ended.get(lease) ?? { settlement: null, at: 0 };
    if (settlement?.kind !== 'throttled') return settlement;
    const left = (ms: number): number => Math.max(0, ms - (this.#clock.monotonic() - at));
    return { ...settlement, closeMs: left(settlement.closeMs), sleepMs: left(settlement.sleepMs) };
  }

  /** What was used while its grant, made behind `keptUpTo`, was lost: units that the state does not count, and for how long it closed. */
  takeLost({ buckets }: SharedState, keptUpTo: number): UsedUnits[] {
    const lost: UsedUnits[] = [];
    for (const [lease, { bucket, setting, costs, grantedBy }] of this.#ended) {
      if (grantedBy === null || grantedBy <= keptUpTo || buckets.get(bucket)?.leases.has(lease) === true)
        continue;
      const settlement = this.settlementOf(lease);
      const closing = settlement?.kind === 'throttled' ? settlement : null;
      const scope = closing?.closesCredential === true ? { closesCredential: true as const } : {};
      lost.push({ bucket, setting, costs, closedMs: closing?.closeMs ?? 0, ...scope });
      this.#ended.delete(lease);
    }
    return lost.filter(({ costs, closedMs }) => Object.keys(costs).length > 0 || closedMs > 0);
  }

  forgetOld(): void {
    const since = this.#clock.monotonic() - memoryMs;
    for (const [lease, { at }] of this.#ended) {
      if (at > since) return;
      this.#ended.delete(lease);
    }
  }
}
