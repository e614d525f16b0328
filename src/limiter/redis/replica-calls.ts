/**
 * What a replica knows of its own calls in one bucket: each is a ticket in one of four states, and a granted one has a
 * lease. Redis may lose everything and is rebuilt from these. Data only.
 */
import type { AdmitReply } from '../policy/bucket-events.ts';
import type { Admission, LeaseToken, Settlement, TicketId } from '../limiter.ts';
import { replicaLifeMs } from '../policy/pump.policy.ts';
import type { HeldLease } from './held-lease.ts';
import type { GrantReply } from './protocol/message-codec.ts';

/** Redis takes a replica for dead after `replicaLifeMs` without a command of it; a second less, for the ways there. */
const silentMs = replicaLifeMs - 1_000;

export type TicketState =
  /** The admission is on its way to Redis, no reply has come yet. */
  | { readonly kind: 'entering' }
  | WaitingState
  | { readonly kind: 'granted'; readonly lease: HeldLease }
  /**
   * Nobody waits for the ticket in this bucket any more: its call has ended, or was moved to another bucket. Redis may still have
   * the ticket: the next reply decides whether it is cancelled there or its grant goes back.
   */
  | { readonly kind: 'withdrawn' };

export interface WaitingState {
  readonly kind: 'waiting';
  /** Monotonic milliseconds since which Redis is known to have the ticket; `null` = Redis may not have it. */
  readonly confirmedAt: number | null;
  /** True when a grant of the ticket was dropped before its message arrived here: Redis forgets the ticket of a dropped grant. */
  readonly mayBeForgotten: boolean;
}

/** A ticket that Redis may not have. */
export const unconfirmed: WaitingState = { kind: 'waiting', confirmedAt: null, mayBeForgotten: false };

/** A call of this replica. */
export interface ReplicaTicket {
  admission: Admission;
  /** Position in the lane; `null` until Redis assigned one. */
  order: number | null;
  /** Monotonic milliseconds. */
  readonly arrivedAt: number;
  state: TicketState;
}

/** Redis is known to have the ticket since `at` (monotonic milliseconds), if it waits. */
export function confirm(ticket: ReplicaTicket | null, at: number): void {
  if (ticket?.state.kind === 'waiting') ticket.state = { ...ticket.state, confirmedAt: at };
}

/** `now`: monotonic milliseconds. */
export const createTicket = (admission: Admission, state: TicketState, now: number): ReplicaTicket => ({
  admission,
  order: admission.position.kind === 'kept' ? admission.position.order : null,
  arrivedAt: admission.position.kind === 'arrival' ? admission.position.at : now,
  state,
});

/** An admission of a ticket that has its position already. */
export type Positioned = Admission & { readonly position: { readonly kind: 'kept'; readonly order: number } };

/** The grant that the reply to an admission names. */
export const grantIn = (
  { ticket, lane }: Admission,
  { lease, expiresAt }: Extract<AdmitReply, { kind: 'granted' }>,
): GrantReply => ({ ticket, lane, lease, expiresAt });

/** All calls of this replica in one bucket. */
export class HeldCalls {
  readonly tickets = new Map<TicketId, ReplicaTicket>();
  readonly leases = new Map<LeaseToken, HeldLease>();
  /** Tickets to be cancelled in Redis when it is available again: they were withdrawn, or another store took them over. */
  readonly cancelLater = new Set<TicketId>();
  /**
   * The next tick enters waiting tickets again, whatever their count is in Redis: others may stand for them, such as came
   * late, or leases whose settlement was lost with them.
   */
  needsResync = false;
  /** Monotonic milliseconds of the latest command that showed Redis that this replica lives. */
  #contactAt: number;

  constructor(now: number) {
    this.#contactAt = now;
  }

  get isEmpty(): boolean {
    return this.tickets.size === 0 && this.leases.size === 0;
  }

  /**
   * Nobody waits for the end of the call: it succeeded in a lane without a cap, and nobody waits here. Calls of other replicas that
   * wait for the quota are not held up by a reservation that becomes exact a little later.
   */
  endsUnawaited({ isCapped }: HeldLease, { kind }: Settlement): boolean {
    return kind === 'succeeded' && !isCapped && this.tickets.size <= this.leases.size;
  }

  /** Tickets that wait, in the order of their lane. */
  waiting(): ReplicaTicket[] {
    return [...this.tickets.values()]
      .filter(({ state }) => state.kind === 'waiting')
      .sort((a, b) => (a.order === null || b.order === null ? 0 : a.order - b.order));
  }

  countWaiting(): number {
    let count = 0;
    for (const { state } of this.tickets.values()) if (state.kind === 'waiting') count += 1;
    return count;
  }

  /** A ticket or a lease of this replica was in the bucket before the command that was sent at `at` (monotonic). */
  wereInRedis(at: number): boolean {
    if (this.leases.size > 0) return true;
    return [...this.tickets.values()].some(
      ({ state }) => state.kind === 'waiting' && state.confirmedAt !== null && state.confirmedAt < at,
    );
  }

  /**
   * Redis got a command of this replica, perhaps after a silence in which it passed over this replica's tickets as those of a
   * dead one.
   */
  noteContact(sentAt: number): void {
    if (sentAt - this.#contactAt > silentMs && this.countWaiting() > 0) this.needsResync = true;
    this.#contactAt = Math.max(this.#contactAt, sentAt);
  }
}
