/**
 * The calls of this replica in one bucket, from their ticket over their grant to the end of their lease.
 *
 * Owns: the state of every ticket and lease; what becomes of a grant; sending settlements, cancellations and tickets that
 * Redis lost. Does not own: arriving calls (`bucket-entry.ts`), ticks (`bucket-ticks.ts`), what a reply says of the bucket
 * (`bucket-replies.ts`).
 * Invariants: a grant reaches its call once; a grant that no call waits for goes back whole; a ticket that waits here is known to
 * Redis or is entered again at its position; a settlement is sent until Redis has it; a lost lease is counted once; after a loss of
 * data no call is sent until all replicas have had time to enter their tickets again; capped lanes wait one lease length then, and
 * only once for losses that follow one another within that time.
 */
import type { TimedLesson } from '../policy/lessons.policy.ts';
import { isRequeued, withoutRequeue } from '../policy/settlement.policy.ts';
import type { BucketView, ReplyTime } from './bucket-view.ts';
import type { SentSettlement } from './ended-leases.ts';
import type { EventQueue } from './event-queue.ts';
import type { BucketKey, Grant, LeaseToken, Settlement, TicketId } from '../limiter.ts';
import type { GrantReply } from './protocol/message-codec.ts';
import {
  confirm,
  grantIn,
  HeldCalls,
  unconfirmed,
  type Positioned,
  type ReplicaTicket,
} from './replica-calls.ts';
import { leaseMarginMs, HeldLease } from './held-lease.ts';
import { KeptGrants } from './kept-grants.ts';
import type { ReplicaContext } from './replica-context.ts';

/** After a permanent error a ticket is not entered again sooner. Milliseconds. */
const reenterAfterMs = 1_000;

export class BucketCalls {
  readonly held: HeldCalls;
  readonly kept: KeptGrants;
  readonly #bucket: BucketKey;
  readonly #queue: EventQueue;
  readonly #view: BucketView;
  readonly #context: ReplicaContext;

  constructor(
    bucket: BucketKey,
    parts: { readonly queue: EventQueue; readonly view: BucketView },
    context: ReplicaContext,
  ) {
    this.#bucket = bucket;
    this.#queue = parts.queue;
    this.#view = parts.view;
    this.#context = context;
    this.held = new HeldCalls(context.clock.monotonic());
    this.kept = new KeptGrants({
      view: parts.view,
      context,
      held: this.held,
      putBack: (lease) => this.settle(lease, { kind: 'returned', sleepMs: 0, because: 'backoff' }, null),
    });
  }

  /** Takes a grant and hands it to its call, at once or when the call may be sent. */
  receive(grant: GrantReply, time: ReplyTime): void {
    const lease = this.take(grant, time);
    if (lease !== null) this.#context.listener.onGrant(lease);
  }

  /** Takes a grant. Returns it if its call may be sent now; one that is kept for a while goes back to Redis, which grants anew. */
  take(grant: GrantReply, time: ReplyTime): Grant | null {
    const { clock, ended, background, leaseMs, recovery } = this.#context;
    if (this.held.leases.has(grant.lease)) return null;
    if (ended.has(grant.lease)) {
      this.#repeatSettlement(grant.lease);
      return null;
    }
    const ticket = this.held.tickets.get(grant.ticket) ?? null;
    const expiresAt = time.sentAt + (grant.expiresAt - time.now) - leaseMarginMs;
    const admission = ticket?.admission ?? null;
    const lease = new HeldLease({ bucket: this.#bucket, grant, expiresAt, admission });
    if (ticket === null || ticket.state.kind === 'withdrawn' || ticket.state.kind === 'granted') {
      this.#dropStray(lease);
      return null;
    }
    ticket.state = { kind: 'granted', lease };
    this.held.leases.set(lease.lease, lease);
    this.#view.readings.noteTaken(lease.costs);
    const now = clock.monotonic();
    // The message of a grant may be late: what Redis knew when it made it is what counts.
    const grantedAt = Math.min(now, expiresAt + leaseMarginMs - leaseMs);
    const resumeAt = Math.max(this.#view.resumeAt ?? grantedAt, recovery.resumeAt ?? grantedAt);
    if (grantedAt < resumeAt) {
      const sleepMs = Math.max(0, resumeAt - now);
      background.run(this.settle(lease, { kind: 'returned', sleepMs, because: 'backoff' }, null));
      return null;
    }
    const withheldMs = this.#context.replica.withholdsMs(lease.isCapped);
    if (withheldMs > 0) {
      const returned = { kind: 'returned', sleepMs: withheldMs, because: 'backoff' } as const;
      background.run(this.settle(lease, returned, null));
      return null;
    }
    const keptMs = lease.isCapped ? this.kept.msLeft() : 0;
    if (keptMs <= 0) return lease;
    this.kept.keep(lease, keptMs);
    return null;
  }

  /** Ends the lease, here and in Redis. If the settlement requeues the ticket, the ticket waits again. */
  async settle(lease: HeldLease, asked: Settlement, lesson: TimedLesson | null): Promise<void> {
    if (!this.held.leases.has(lease.lease)) return;
    const now = this.#context.clock.monotonic();
    // Counted here already, because a lost reply would leave unknown whether Redis still knew the lease.
    if (lease.expiresAt + leaseMarginMs < now) this.countLost(lease, 'stalled');
    this.#end(lease);
    if (asked.kind === 'throttled') this.#view.closing.extend(now + asked.closeMs);
    if (asked.kind === 'returned' || asked.kind === 'dropped') this.#view.readings.noteReturned(lease.costs);
    const ticket = this.held.tickets.get(lease.ticket) ?? null;
    const requeues = isRequeued(asked);
    const settlement = requeues && ticket === null ? withoutRequeue(asked) : asked;
    if (ticket !== null && requeues) ticket.state = unconfirmed;
    else this.held.tickets.delete(lease.ticket);
    const sent = { lease, settlement, lesson, at: now };
    if (requeues) this.#context.ended.allowRepeat(sent);
    await this.sendSettlement(sent, ticket);
  }

  /** Sends the settlement of a lease that has ended here. `ticket`: the ticket that the settlement requeues, or `null`. */
  async sendSettlement(sent: SentSettlement, ticket: ReplicaTicket | null): Promise<void> {
    const { lease, settlement, lesson } = sent;
    const { redis, ended, listener, positions, onStranded } = this.#context;
    const waits = (): boolean =>
      ticket?.state.kind === 'waiting' && this.held.tickets.get(lease.ticket) === ticket;
    const asked = await this.#queue.apply<'settle'>(
      { kind: 'settle', lease: lease.lease, settlement, lesson },
      { isDeferrable: this.held.endsUnawaited(lease, settlement) },
    );
    if (asked.kind === 'unavailable') {
      ended.defer(sent, redis.isUp);
      if (ticket !== null && waits() && onStranded(positions.positioned(ticket)))
        this.held.tickets.delete(lease.ticket);
    } else {
      const { reply, sentAt, attempts, whenRead } = asked;
      const didWait = waits();
      if (!reply.known && attempts === 1) this.countLost(lease, 'expired');
      if (didWait) confirm(ticket, sentAt);
      await whenRead;
      if (didWait && !reply.known && ticket?.state.kind === 'waiting') this.reenter(ticket);
      if (isRequeued(settlement) && ticket?.state.kind === 'withdrawn') this.sendCancel(lease.ticket);
    }
    if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
      listener.onClosed(lease.bucket, settlement.closeMs);
    }
  }

  /** Sends a settlement again that Redis, although available, did not take. A ticket that it requeued is entered again. */
  async retrySettlement(sent: SentSettlement): Promise<void> {
    await this.sendSettlement(sent, null);
    const ticket = this.held.tickets.get(sent.lease.ticket);
    const isOutside = ticket?.state.kind === 'waiting' && ticket.state.confirmedAt === null;
    if (isOutside && !this.#context.ended.isDeferred(sent.lease.lease)) this.reenter(ticket);
  }

  /** Enters a waiting ticket again, at its position, because Redis may not have it. Redis never refuses such a ticket. */
  reenter(ticket: ReplicaTicket): void {
    if (!this.#context.redis.isUp) return;
    ticket.state = unconfirmed;
    const admission = this.#context.positions.positioned(ticket);
    ticket.order = admission.position.order;
    this.#context.background.run(this.#enterAgain(ticket, admission));
  }

  async #enterAgain(ticket: ReplicaTicket, admission: Positioned): Promise<void> {
    const { redis, clock } = this.#context;
    const isOutside = (): boolean =>
      this.held.tickets.get(admission.ticket) === ticket &&
      ticket.state.kind === 'waiting' &&
      ticket.state.confirmedAt === null;
    const event = { kind: 'admit', admission: this.#context.positions.stored(admission) } as const;
    const asked = await this.#queue.apply<'admit'>(event);
    if (asked.kind === 'unavailable') {
      // Redis is available but answered with a permanent error: no recovery will enter the ticket again, so a timer does.
      if (redis.isUp && isOutside()) clock.after(reenterAfterMs, () => isOutside() && this.reenter(ticket));
      return;
    }
    const { reply, bucket, sentAt, whenRead } = asked;
    confirm(ticket, sentAt);
    this.held.noteContact(sentAt);
    await whenRead;
    if (reply.kind === 'granted') this.receive(grantIn(admission, reply), { now: bucket.now, sentAt });
    else if (ticket.state.kind === 'withdrawn') this.sendCancel(admission.ticket);
  }

  sendCancel(ticket: TicketId): void {
    this.#context.background.run(this.#queue.send<'cancel'>({ kind: 'cancel', ticket }));
  }

  /** Redis lost the data of the bucket: counts the leases as lost, and enters waiting tickets again. */
  lose(): void {
    const now = this.#context.clock.monotonic();
    this.#view.lostAt = now;
    this.#view.keepClosed();
    for (const lease of this.held.leases.values()) {
      if (lease.state.kind !== 'quarantined') {
        this.countLost(lease, 'epoch');
        lease.expiresAt = Math.min(lease.expiresAt, now);
      } else {
        this.#end(lease);
        const ticket = this.held.tickets.get(lease.ticket);
        if (ticket !== undefined) ticket.state = unconfirmed;
      }
    }
    for (const ticket of this.held.waiting()) this.reenter(ticket);
  }

  countLost(lease: HeldLease, reason: 'epoch' | 'stalled' | 'expired'): void {
    if (lease.isLost) return;
    lease.lose();
    if (lease.isCapped) this.#context.telemetry.leaseLost(reason);
  }

  /** Gives back a grant for which no call waits here. */
  #dropStray(lease: HeldLease): void {
    const { clock, ended, background } = this.#context;
    const at = clock.monotonic();
    const sent: SentSettlement = { lease, settlement: { kind: 'dropped' }, lesson: null, at };
    ended.add(lease.lease, at);
    ended.allowRepeat(sent);
    background.run(this.sendSettlement(sent, null));
  }

  /** Redis names a lease that has ended here: its settlement was lost with Redis' data, or is still on its way. Sends it again. */
  #repeatSettlement(lease: LeaseToken): void {
    const { ended, clock, background } = this.#context;
    const known = ended.repeatable(lease);
    if (known === null) return;
    const ticket = this.held.tickets.get(known.lease.ticket) ?? null;
    if (known.settlement.kind === 'dropped' && ticket?.state.kind === 'waiting') {
      ticket.state = { ...ticket.state, mayBeForgotten: true };
    }
    const again = ended.takeRepeat(lease, clock.monotonic());
    if (again !== null) background.run(this.sendSettlement(again, ticket));
  }

  /** Ends the lease in this replica only. */
  #end(lease: HeldLease): void {
    lease.endQuarantine();
    this.held.leases.delete(lease.lease);
    this.#context.ended.add(lease.lease, this.#context.clock.monotonic());
  }
}
