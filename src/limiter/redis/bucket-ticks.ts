/**
 * What a replica asks of one bucket without being asked: once a second, and when the next grant may be possible.
 *
 * Owns: renewing leases, noticing that Redis lost tickets, reading meters. Does not own: timers (`bucket-sessions.ts`,
 * `pump-timer.ts`).
 * Invariant: room and a waiting ticket mean a grant within a tick even if messages are lost.
 */
import type { BucketParts } from './bucket-entry.ts';
import type { TickReply } from '../policy/bucket-events.ts';
import { leasesPerTick } from './protocol/event-codec.ts';
import type { AppliedEvent } from './outbox.ts';
import { type ReplicaTicket } from './replica-calls.ts';
import { leaseMarginMs, type HeldLease } from './held-lease.ts';

export class BucketTicks {
  readonly #parts: BucketParts;
  #isTicking = false;

  constructor(parts: BucketParts) {
    this.#parts = parts;
  }

  /** Asks for what was missed, and renews every lease. */
  async tick(): Promise<void> {
    if (this.#isTicking) return;
    this.#isTicking = true;
    try {
      const leases = [...this.#parts.calls.held.leases.values()];
      this.#countStalled(leases);
      for (let from = 0; from === 0 || from < leases.length; from += leasesPerTick) {
        await this.#ask(leases.slice(from, from + leasesPerTick));
      }
    } finally {
      this.#isTicking = false;
    }
  }

  /** Asks for what was missed, whatever tick is under way. */
  pump(): Promise<void> {
    return this.#ask([]);
  }

  #countStalled(leases: readonly HeldLease[]): void {
    const { calls, context } = this.#parts;
    const now = context.clock.monotonic();
    for (const lease of leases) if (lease.expiresAt + leaseMarginMs < now) calls.countLost(lease, 'stalled');
  }

  async #ask(leases: readonly HeldLease[]): Promise<void> {
    const { calls, queue, view, context } = this.#parts;
    const { held } = calls;
    const known = [...held.tickets.values()].filter(isConfirmed);
    const renewed = leases.filter(({ lease }) => held.leases.has(lease));
    const asked = await queue.apply<'tick'>({ kind: 'tick', leases: renewed.map(({ lease }) => lease) });
    if (asked.kind === 'unavailable') return;
    this.#renew(renewed, asked);
    const waiting = known.filter(({ state }) => isConfirmedBefore(state, asked.sentAt));
    const isOneLost = this.#missesOne(waiting.length, asked);
    const { setting } = view;
    view.readings.note({ meters: asked.reply.meters, at: context.clock.monotonic(), setting });
    await asked.whenRead;
    for (const ticket of waiting) {
      if (isConfirmed(ticket) && (isOneLost || mayBeForgotten(ticket))) calls.reenter(ticket);
    }
  }

  #renew(leases: readonly HeldLease[], { bucket, sentAt }: AppliedEvent<TickReply>): void {
    const { view, context } = this.#parts;
    if (bucket.createdAt === null || bucket.createdAt !== view.createdAt) return;
    const until = sentAt + context.leaseMs - leaseMarginMs;
    for (const lease of leases) {
      if (!lease.isLost) lease.expiresAt = Math.max(lease.expiresAt, until);
    }
  }

  /** Redis has fewer tickets of this replica than it was known to have. */
  #missesOne(known: number, { reply, bucket, sentAt }: AppliedEvent<TickReply>): boolean {
    const { held } = this.#parts.calls;
    held.noteContact(sentAt);
    const isOneLost = reply.waitingHere + bucket.unnamed < known || held.needsResync;
    held.needsResync = false;
    return isOneLost;
  }
}

const isConfirmed = ({ state }: ReplicaTicket): boolean =>
  state.kind === 'waiting' && state.confirmedAt !== null;

const isConfirmedBefore = (state: ReplicaTicket['state'], at: number): boolean =>
  state.kind === 'waiting' && state.confirmedAt !== null && state.confirmedAt < at;

const mayBeForgotten = ({ state }: ReplicaTicket): boolean =>
  state.kind === 'waiting' && state.mayBeForgotten;
