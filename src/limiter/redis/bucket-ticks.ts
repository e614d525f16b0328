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
import type { Found } from './replica.ts';
import type { LeaseToken } from '../limiter.ts';
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
  async pump(): Promise<void> {
    await this.#ask([]);
  }

  /**
   * Does Redis have every lease of this replica? Enters all waiting tickets again, and resolves when that is done. `null` = Redis
   * did not reply.
   */
  async check(): Promise<Found | null> {
    const { held } = this.#parts.calls;
    const leases = [...held.leases.values()].filter(({ isLost }) => !isLost);
    const missing = new Set<LeaseToken>();
    held.needsResync = true;
    for (let from = 0; from === 0 || from < leases.length; from += leasesPerTick) {
      const reply = await this.#ask(leases.slice(from, from + leasesPerTick));
      if (reply === null) return null;
      for (const token of reply.missing) missing.add(token);
    }
    // Goes behind the tickets that were entered again.
    if ((await this.#ask([])) === null) return null;
    const now = this.#parts.context.clock.monotonic();
    // A lease that has ended meanwhile, or has run out, is not looked for.
    const isMissing = (lease: HeldLease): boolean =>
      held.leases.get(lease.lease) === lease &&
      (lease.isLost || missing.has(lease.lease)) &&
      lease.expiresAt > now - leaseMarginMs;
    return leases.some(isMissing) ? 'missing' : 'whole';
  }

  #countStalled(leases: readonly HeldLease[]): void {
    const { calls, context } = this.#parts;
    const now = context.clock.monotonic();
    for (const lease of leases) if (lease.expiresAt + leaseMarginMs < now) calls.countLost(lease, 'stalled');
  }

  async #ask(leases: readonly HeldLease[]): Promise<TickReply | null> {
    const { calls, queue, view, context } = this.#parts;
    const { held } = calls;
    const known = [...held.tickets.values()].filter(isConfirmed);
    const renewed = leases.filter(({ lease }) => held.leases.has(lease));
    const asked = await queue.apply<'tick'>({ kind: 'tick', leases: renewed.map(({ lease }) => lease) });
    if (asked.kind === 'unavailable') return null;
    this.#renew(renewed, asked);
    const waiting = known.filter(({ state }) => isConfirmedBefore(state, asked.sentAt));
    const isOneLost = this.#missesOne(waiting.length, asked);
    const { setting } = view;
    view.readings.note({ meters: asked.reply.meters, at: context.clock.monotonic(), setting });
    await asked.whenRead;
    for (const ticket of waiting) {
      if (isConfirmed(ticket) && (isOneLost || mayBeForgotten(ticket))) calls.reenter(ticket);
    }
    return asked.reply;
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
