/**
 * What this replica remembers of calls that ended: the log may lose what it was told, and is told it again then.
 *
 * Owns: for how long, and what of it the state may lack. Does not own: telling the log (`shard.ts`). Times are monotonic milliseconds.
 */
import type { Clock } from '../../clock.ts';
import type { LeaseToken } from '../../ids.ts';
import type { Settlement } from '../limiter.ts';
import { withoutRequeue } from '../policy/settlement.policy.ts';
import { closingBy, type EndedCall } from './own-call.ts';
import { isGrantLost, saidAgain } from './reconcile.ts';
import type { SharedState, UsedUnits } from './state.ts';

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
