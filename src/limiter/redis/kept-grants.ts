/**
 * Grants of capped lanes that are kept from their calls, because calls of which Redis knows nothing may still be under way.
 *
 * Owns: since when, and for how long. Does not own: what becomes of a grant that Redis loses meanwhile (`bucket-calls.ts`).
 * Invariants: a grant is kept for one lease length from the beginning of the hold that all replicas share; nothing is handed
 * over within a hold, so losses within it need no longer one; it is handed over only while Redis knows it.
 */
import type { BucketView } from './bucket-view.ts';
import type { EventQueue } from './event-queue.ts';
import type { HeldLease } from './held-lease.ts';
import type { ReplicaContext } from './replica-context.ts';

export interface KeptGrantsParts {
  readonly queue: EventQueue;
  readonly view: BucketView;
  readonly context: ReplicaContext;
  /** The lease has not ended here. */
  readonly isHeld: (lease: HeldLease) => boolean;
  /** Redis is unavailable: the ticket waits again, wherever waiting calls are now. */
  readonly putBack: (lease: HeldLease) => Promise<void>;
}

export class KeptGrants {
  readonly #parts: KeptGrantsParts;

  constructor(parts: KeptGrantsParts) {
    this.#parts = parts;
  }

  /** For how long calls may still be in flight that Redis has lost, or that were sent without Redis. Milliseconds. */
  msLeft(): number {
    const { view, context } = this.#parts;
    const { replica, recovery, clock, leaseMs } = context;
    const starts = [view.lostAloneAt, replica.heldSince(), recovery.overlapSince].filter((at) => at !== null);
    return starts.length === 0 ? 0 : Math.max(...starts) + leaseMs - clock.monotonic();
  }

  /** Withholds the grant from its call for `ms` milliseconds, then hands it over. */
  keep(lease: HeldLease, ms: number): void {
    const { clock, background } = this.#parts.context;
    lease.quarantine(clock.after(ms, () => background.run(this.#handOver(lease))));
  }

  /** Asks Redis first whether it still knows the grant: if it lost the grant, other replicas may send in the same lane. */
  async #handOver(lease: HeldLease): Promise<void> {
    const { queue, context, isHeld, putBack } = this.#parts;
    lease.quarantine(() => {});
    const asked = await queue.send<'tick'>({ kind: 'tick', leases: [lease.lease] });
    if (!isHeld(lease)) return;
    if (asked.kind === 'unavailable') return putBack(lease);
    const leftMs = this.msLeft();
    if (leftMs > 0) return this.keep(lease, leftMs);
    lease.endQuarantine();
    context.listener.onGrant(lease);
  }
}
