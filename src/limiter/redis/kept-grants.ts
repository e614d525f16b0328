/**
 * Grants of capped lanes that are kept from their calls, because calls of which Redis knows nothing may still be under way.
 *
 * Owns: since when, and for how long. Does not own: what becomes of a grant that Redis loses meanwhile (`bucket-calls.ts`).
 * Invariants: a grant is kept for one lease length from the beginning of the hold that all replicas share; nothing is sent
 * within a hold, so losses within it need no longer one; a kept grant is never handed over: it goes back to its position, and
 * Redis grants anew by what holds then. A reload may have lowered the lane's cap meanwhile, and only Redis knows what other
 * replicas have in flight in the lane.
 */
import type { BucketView } from './bucket-view.ts';
import type { HeldCalls } from './replica-calls.ts';
import type { HeldLease } from './held-lease.ts';
import type { ReplicaContext } from './replica-context.ts';

export interface KeptGrantsParts {
  readonly view: BucketView;
  readonly context: ReplicaContext;
  readonly held: HeldCalls;
  /** The ticket waits again, at its position. */
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

  /** Withholds the grant from its call for `ms` milliseconds, then puts it back. */
  keep(lease: HeldLease, ms: number): void {
    const { context, putBack } = this.#parts;
    const { clock, background } = context;
    lease.quarantine(clock.after(Math.ceil(ms), () => background.run(putBack(lease))));
  }

  /** A reload took the cap of some lanes away: nothing keeps the calls of their grants any more. */
  releaseUncapped(): void {
    const { context, held, putBack } = this.#parts;
    for (const lease of held.leases.values()) {
      const isUncapped = held.tickets.get(lease.ticket)?.admission.maxInFlight === null;
      if (isUncapped && lease.state.kind === 'quarantined') context.background.run(putBack(lease));
    }
  }
}
