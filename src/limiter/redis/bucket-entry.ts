/**
 * The way of tickets into one bucket and out of it: arriving calls, calls that end or move to another bucket while they wait, waiting
 * calls that another store takes over or gives back.
 *
 * Owns: the reply to an admission, taking out of Redis what nobody waits for any more. Does not own: what becomes of a grant
 * (`bucket-calls.ts`).
 */
import type { AdmitReply } from '../policy/bucket-events.ts';
import type { BucketCalls } from './bucket-calls.ts';
import type { BucketView } from './bucket-view.ts';
import type { EventQueue } from './event-queue.ts';
import { queuedWithoutForecast, type Admission, type AdmissionReply, type TicketId } from '../limiter.ts';
import { unavailable, type Unavailable } from '../../redis/health.ts';
import { createTicket, grantIn, unconfirmed, type Positioned, type ReplicaTicket } from './replica-calls.ts';
import type { HeldLease } from './held-lease.ts';
import type { ReplicaContext } from './replica-context.ts';

export interface BucketParts {
  readonly queue: EventQueue;
  readonly view: BucketView;
  readonly calls: BucketCalls;
  readonly context: ReplicaContext;
}

/** Redis gave no reply to this admission, which is as configuration has it by now. */
export interface Unanswered extends Unavailable {
  readonly admission: Admission;
}

export class BucketEntry {
  readonly #queue: EventQueue;
  readonly #view: BucketView;
  readonly #calls: BucketCalls;
  readonly #context: ReplicaContext;

  constructor({ queue, view, calls, context }: BucketParts) {
    this.#queue = queue;
    this.#view = view;
    this.#calls = calls;
    this.#context = context;
  }

  async admit(admission: Admission): Promise<AdmissionReply | Unanswered> {
    const { clock, positions } = this.#context;
    const ticket = createTicket(admission, { kind: 'entering' }, clock.monotonic());
    this.#calls.held.tickets.set(admission.ticket, ticket);
    this.#view.setting = admission.setting;
    const event = { kind: 'admit', admission: positions.stored(admission) } as const;
    const asked = await this.#queue.apply<'admit'>(event, { arrivingLane: admission.lane });
    if (asked.kind === 'unavailable') return this.#leaveUnanswered(ticket);
    const { reply, bucket, sentAt, whenRead } = asked;
    this.#noteAdmitted(ticket, reply, sentAt);
    await whenRead;
    if (reply.kind === 'refused') return reply;
    const isWithdrawn = ticket.state.kind === 'withdrawn';
    if (reply.kind === 'granted') {
      const grant = this.#calls.take(grantIn(admission, reply), { now: bucket.now, sentAt });
      if (isWithdrawn) this.#calls.held.tickets.delete(admission.ticket);
      return grant === null ? queuedWithoutForecast : { kind: 'granted', grant };
    }
    if (isWithdrawn) {
      this.#calls.held.tickets.delete(admission.ticket);
      this.#calls.sendCancel(admission.ticket);
    }
    return reply;
  }

  #noteAdmitted(ticket: ReplicaTicket, reply: AdmitReply, sentAt: number): void {
    const { held } = this.#calls;
    held.noteContact(sentAt);
    if (reply.kind === 'refused') return void held.tickets.delete(ticket.admission.ticket);
    ticket.order = reply.order;
    if (ticket.state.kind === 'entering') ticket.state = { ...unconfirmed, confirmedAt: sentAt };
  }

  /** No reply came, but Redis may have entered the ticket: a ticket that is still `entering`, or `withdrawn`, is cancelled there. */
  #leaveUnanswered(ticket: ReplicaTicket): AdmissionReply | Unanswered {
    const { ticket: id } = ticket.admission;
    const { kind } = ticket.state;
    const isHere = this.#calls.held.tickets.get(id) === ticket;
    if (isHere && (kind === 'entering' || kind === 'withdrawn')) {
      this.#calls.held.tickets.delete(id);
      this.#cancelNowOrLater(id);
    }
    // `withdrawn`: nobody needs the reply. `waiting`, `granted`: a message or another reply brought the ticket's grant, after
    // which the ticket may have gone back to waiting, here or in the store to which waiting calls were moved.
    if (kind === 'withdrawn' || kind === 'waiting' || (isHere && kind === 'granted'))
      return queuedWithoutForecast;
    return { ...unavailable, admission: ticket.admission };
  }

  /** Takes the ticket out, because it moves to another bucket. Returns its position; `null` = this session has no such ticket. */
  take(id: TicketId): Positioned['position'] | null {
    const ticket = this.#calls.held.tickets.get(id);
    this.cancel(id);
    return ticket === undefined ? null : this.#context.positions.positioned(ticket).position;
  }

  /**
   * Withdraws a ticket, because its call has ended or moves to another bucket. While its admission is on the way to Redis, the ticket
   * stays here, marked `withdrawn` for `admit`.
   */
  cancel(id: TicketId): void {
    const { held } = this.#calls;
    const ticket = held.tickets.get(id);
    if (ticket === undefined) return;
    const before = ticket.state;
    ticket.state = { kind: 'withdrawn' };
    // The reply to the admission is still to come; it decides what has to be taken back.
    if (before.kind === 'entering' || before.kind === 'withdrawn') return;
    held.tickets.delete(id);
    if (before.kind === 'waiting') this.#cancelNowOrLater(id);
    // A lease that its call has is settled by the call.
    else if (before.lease.state.kind === 'quarantined') this.#drop(before.lease);
  }

  /** Enters a ticket that has its position already; Redis never refuses it. */
  reenter(admission: Admission): void {
    const ticket = createTicket(admission, unconfirmed, this.#context.clock.monotonic());
    this.#calls.held.tickets.set(admission.ticket, ticket);
    this.#calls.reenter(ticket);
  }

  /** Hands over every waiting ticket, each with its position. */
  takeWaiting(): Positioned[] {
    const { held } = this.#calls;
    return held.waiting().map((ticket) => {
      const admission = this.#context.positions.positioned(ticket);
      held.tickets.delete(admission.ticket);
      held.cancelLater.add(admission.ticket);
      return admission;
    });
  }

  /**
   * Cancels in Redis the tickets whose cancellation was put off and that do not wait here again. True = there were some, and Redis
   * may have granted them meanwhile.
   */
  cancelDeferred(): boolean {
    const { cancelLater, tickets } = this.#calls.held;
    const hadSome = cancelLater.size > 0;
    for (const ticket of cancelLater) if (!tickets.has(ticket)) this.#calls.sendCancel(ticket);
    cancelLater.clear();
    return hadSome;
  }

  /** Cancels a ticket whose call waits no longer: at once, or as soon as Redis is available again. */
  #cancelNowOrLater(id: TicketId): void {
    if (this.#context.redis.isUp) this.#calls.sendCancel(id);
    else this.#calls.held.cancelLater.add(id);
  }

  #drop(lease: HeldLease): void {
    this.#context.background.run(this.#calls.settle(lease, { kind: 'dropped' }, null));
  }
}
