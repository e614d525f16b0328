/**
 * The tickets of this replica's calls: entered, entered again at their place when Redis does not know them, taken out.
 *
 * Owns: the way of a ticket into Redis and out of it. Refuses to own: grants (`redis-grants.ts`), whose turn it is (the
 * scripts).
 * Keeps: a ticket that waits here is known to Redis, or is entered again; a repeated admission keeps its first place.
 */
import type { Clock } from '../clock.ts';
import { grantUnderWay, type Admission, type AdmissionReply, type BucketKey } from './limiter.ts';
import type { AdmitReply } from './bucket-events.ts';
import type { Positioned, Scripts } from './redis-asking.ts';
import { noteSeen, waitingOf, type BucketBook, type KeptLease, type KeptTicket } from './redis-book.ts';
import type { Grants } from './redis-grants.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import type { Settling } from './redis-settling.ts';
import type { ToldGrant } from './reply-codec.ts';

/** After a wrong answer a ticket is not entered again sooner. Milliseconds. */
const enterAgainMs = 1_000;

export interface Tickets {
  admit(admission: Admission): Promise<AdmissionReply>;
  cancel(bucket: BucketKey, id: string): Promise<void>;
  tellCancelled(book: BucketBook, ticket: string): void;
  /** A ticket that waits here and that Redis does not know. */
  enterAgain(book: BucketBook, ticket: KeptTicket): void;
  /** Enters a ticket that has its place already; never refused. */
  reenter(admission: Admission): void;
  /** Hands over every waiting ticket, each with its position; the books forget them. */
  takeWaiting(): Positioned[];
}

export function createTickets(parts: {
  readonly scripts: Scripts;
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly books: ReadonlyMap<BucketKey, BucketBook>;
  readonly bookOf: (key: BucketKey) => BucketBook;
  readonly grants: Pick<Grants, 'deliver'>;
  readonly settle: Settling['settle'];
}): Tickets {
  const { scripts, link, clock, books, bookOf, settle } = parts;
  const { ask, background, positioned, stored } = scripts;
  const { deliver } = parts.grants;

  const admit = async (admission: Admission): Promise<AdmissionReply> => {
    const book = bookOf(admission.bucket);
    const ticket = createTicket(admission, 'entering', clock.monotonic());
    book.tickets.set(admission.ticket, ticket);
    const asked = await ask<'admit'>(
      book,
      { kind: 'admit', admission: stored(admission) },
      { newcomer: admission.lane, take: ({ reply, sentAt }) => noteAdmitted(book, ticket, reply, sentAt) },
    );
    if (asked.kind === 'unavailable') return leaveUnanswered(book, ticket);
    const { reply, bucket, sentAt } = asked;
    if (reply.kind === 'refused') return reply;
    if (reply.kind === 'granted') {
      let handed: KeptLease | null = null;
      deliver(book, grantOf(admission, reply), bucket.now, sentAt, (lease) => (handed = lease));
      if (ticket.cancelled) book.tickets.delete(admission.ticket);
      if (handed !== null) return { kind: 'granted', grant: handed };
      return grantUnderWay;
    }
    if (ticket.cancelled) {
      book.tickets.delete(admission.ticket);
      tellCancelled(book, admission.ticket);
    }
    const { forecastMs, ahead, heldBy } = reply;
    return { kind: 'queued', forecastMs, ahead, heldBy };
  };

  const noteAdmitted = (book: BucketBook, ticket: KeptTicket, reply: AdmitReply, sentAt: number): void => {
    noteSeen(book, sentAt);
    if (reply.kind === 'refused') return void book.tickets.delete(ticket.admission.ticket);
    ticket.order = reply.order;
    if (ticket.state !== 'entering') return;
    ticket.state = 'waiting';
    ticket.knownAt = sentAt;
  };

  /** Redis may have entered it all the same. */
  const leaveUnanswered = (book: BucketBook, ticket: KeptTicket): AdmissionReply => {
    const { ticket: id } = ticket.admission;
    const isHere = book.tickets.get(id) === ticket;
    if (isHere && ticket.state === 'entering') {
      book.tickets.delete(id);
      // Is Redis there, only this reply was wrong.
      if (link.isUp) tellCancelled(book, id);
      else book.moved.add(id);
    }
    // Nobody waits for it any more, or only the reply is missing: its grant came otherwise, and it may wait again since,
    // here or where waiting calls went.
    const isKept = isHere && ticket.state === 'granted';
    if (isKept || ticket.state === 'waiting' || ticket.cancelled) return grantUnderWay;
    throw new RedisAway();
  };

  /** A ticket that waits here and that Redis does not know. */
  const enterAgain = (book: BucketBook, ticket: KeptTicket): void => {
    if (!link.isUp) return;
    ticket.knownAt = Infinity;
    ticket.isDoubtful = false;
    const admission = positioned(ticket);
    ticket.order = admission.position.order;
    const isOutside = (): boolean =>
      book.tickets.get(admission.ticket) === ticket &&
      ticket.state === 'waiting' &&
      ticket.knownAt === Infinity;
    background(
      ask<'admit'>(
        book,
        { kind: 'admit', admission },
        {
          take: ({ sentAt }) => {
            if (ticket.state === 'waiting') ticket.knownAt = sentAt;
            noteSeen(book, sentAt);
          },
        },
      ).then((asked) => {
        if (asked.kind === 'unavailable') {
          // Redis is there and has answered wrongly: no return of it is to be waited for.
          if (link.isUp && isOutside())
            clock.after(enterAgainMs, () => isOutside() && enterAgain(book, ticket));
          return;
        }
        const { reply, bucket, sentAt } = asked;
        if (reply.kind === 'granted') deliver(book, grantOf(admission, reply), bucket.now, sentAt);
        else if (ticket.cancelled) tellCancelled(book, admission.ticket);
      }),
    );
  };

  const tellCancelled = (book: BucketBook, ticket: string): void =>
    background(ask<'cancel'>(book, { kind: 'cancel', ticket }));

  const cancel = async (bucket: BucketKey, id: string): Promise<void> => {
    const book = books.get(bucket);
    const ticket = book?.tickets.get(id);
    if (book === undefined || ticket === undefined) return;
    ticket.cancelled = true;
    if (ticket.state === 'entering') return;
    book.tickets.delete(id);
    if (ticket.state === 'waiting') {
      if (link.isUp) tellCancelled(book, id);
      else book.moved.add(id);
    }
    for (const lease of book.leases.values()) {
      // Kept from a call that has left now.
      if (lease.ticket === id && lease.cancelHold !== null)
        background(settle(lease, { kind: 'dropped' }, null));
    }
  };

  return {
    admit,
    cancel,
    tellCancelled,
    enterAgain,

    reenter(admission) {
      const book = bookOf(admission.bucket);
      const ticket = createTicket(admission, 'waiting', clock.monotonic());
      book.tickets.set(admission.ticket, ticket);
      enterAgain(book, ticket);
    },

    takeWaiting() {
      const taken: Positioned[] = [];
      for (const book of books.values()) {
        for (const ticket of waitingOf(book)) {
          const admission = positioned(ticket);
          book.tickets.delete(admission.ticket);
          book.moved.add(admission.ticket);
          taken.push(admission);
        }
      }
      return taken;
    },
  };
}

const grantOf = (
  { ticket, lane }: Admission,
  { lease, expiresAt }: Extract<AdmitReply, { kind: 'granted' }>,
): ToldGrant => ({ ticket, lane, lease, expiresAt });

/** `now`: monotonic milliseconds. */
const createTicket = (admission: Admission, state: KeptTicket['state'], now: number): KeptTicket => ({
  admission,
  order: admission.position.kind === 'kept' ? admission.position.order : null,
  arrivedAt: admission.position.kind === 'arrival' ? admission.position.at : now,
  state,
  cancelled: false,
  knownAt: Infinity,
  isDoubtful: false,
});
