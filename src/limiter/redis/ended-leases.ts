/**
 * Leases of this replica that have ended here, and what of that Redis does not know yet. A settlement is sent once, again
 * when its first sending was lost, and later when Redis was unavailable.
 *
 * Owns: which settlements are to be sent again, and for how long a token is remembered. Does not own: sending
 * (`bucket-calls.ts`). Bounds: `maxDeferred` settlements wait for Redis; a token is forgotten after `rememberedMs`.
 */
import type { TimedLesson } from '../policy/lessons.policy.ts';
import type { LeaseToken, Settlement } from '../limiter.ts';
import type { HeldLease } from './held-lease.ts';
import { withoutDelays, withoutRequeue } from '../policy/settlement.policy.ts';

/** A settlement is not sent again within this time, because the first one may still be on its way. Milliseconds. */
const resendAfterMs = 1_000;
/** Tokens of ended leases are remembered this long: a reply on its way may still name them as grants. Milliseconds. */
const rememberedMs = 30_000;
/** Settlements kept while Redis is unavailable. */
const maxDeferred = 20_000;
/** How many settlements that Redis answered with a permanent error are sent again at a time. */
const maxRetries = 64;

/** A settlement as it was sent, or was to be sent. */
export interface SentSettlement {
  readonly lease: HeldLease;
  readonly settlement: Settlement;
  readonly lesson: TimedLesson | null;
  /** Monotonic milliseconds. */
  readonly at: number;
}

interface Deferred {
  readonly sent: SentSettlement;
  /** Redis is available and answered with a permanent error: no return of Redis is to be waited for. */
  readonly isRejected: boolean;
}

export class EndedLeases {
  /** When each token ended, oldest first, monotonic milliseconds. */
  readonly #ended = new Map<LeaseToken, number>();
  readonly #deferred = new Map<LeaseToken, Deferred>();
  /** Settlements that end nothing under way: sent once more if Redis goes on naming their leases as grants. */
  readonly #repeatable = new Map<LeaseToken, SentSettlement>();

  add(lease: LeaseToken, at: number): void {
    this.#ended.set(lease, at);
  }

  has(lease: LeaseToken): boolean {
    return this.#ended.has(lease);
  }

  /** Redis may go on naming the lease as a grant: the settlement may be repeated, without its delays and its lesson. */
  allowRepeat(sent: SentSettlement): void {
    const settlement = withoutDelays(sent.settlement);
    this.#repeatable.set(sent.lease.lease, { ...sent, settlement, lesson: null });
  }

  repeatable(lease: LeaseToken): SentSettlement | null {
    return this.#repeatable.get(lease) ?? null;
  }

  /** The settlement to be sent again now, if any: Redis still names the lease as a grant. */
  takeRepeat(lease: LeaseToken, now: number): SentSettlement | null {
    const sent = this.#repeatable.get(lease);
    if (sent === undefined || now - sent.at < resendAfterMs || this.#deferred.has(lease)) return null;
    const again = { ...sent, at: now };
    this.#repeatable.set(lease, again);
    return again;
  }

  defer(sent: SentSettlement, isRejected: boolean): void {
    if (this.#deferred.size < maxDeferred) this.#deferred.set(sent.lease.lease, { sent, isRejected });
  }

  isDeferred(lease: LeaseToken): boolean {
    return this.#deferred.has(lease);
  }

  /** Redis is available again: everything that it does not know. */
  takeDeferred(now: number): SentSettlement[] {
    const all = [...this.#deferred.values()].map(({ sent }) => aged(sent, now));
    this.#deferred.clear();
    return all;
  }

  /** Some of those that Redis answered with a permanent error. */
  takeRejected(now: number): SentSettlement[] {
    const taken: SentSettlement[] = [];
    for (const [lease, { sent, isRejected }] of this.#deferred) {
      if (!isRejected) continue;
      if (taken.length >= maxRetries) break;
      this.#deferred.delete(lease);
      taken.push(aged(sent, now));
    }
    return taken;
  }

  forgetOld(now: number): void {
    for (const [lease, at] of this.#ended) {
      if (now - at < rememberedMs) break;
      this.#ended.delete(lease);
      this.#repeatable.delete(lease);
    }
  }
}

/** A settlement sent late: its durations have gone by in part, and its ticket is taken care of otherwise. */
function aged({ lease, settlement, lesson, at }: SentSettlement, now: number): SentSettlement {
  const lateMs = now - at;
  const plain = withoutRequeue(settlement);
  const left = (ms: number): number => Math.max(0, ms - lateMs);
  return {
    lease,
    settlement:
      plain.kind === 'throttled'
        ? { ...plain, closeMs: left(plain.closeMs), sleepMs: left(plain.sleepMs) }
        : plain,
    lesson,
    at: now,
  };
}
