/**
 * The tickets of this replica's calls: entered, entered again at their place when Redis does not know them, taken out.
 *
 * Owns: the way of a ticket into Redis and out of it. Refuses to own: grants (`redis-grants.ts`), whose turn it is (the
 * scripts).
 * Keeps: a ticket that waits here is known to Redis, or is entered again; a repeated admission keeps its first place.
 */
import type { Clock } from '../clock.ts';
import { grantUnderWay, type Admission, type AdmissionReply, type BucketKey } from './limiter.ts';
import type { Asked, Positioned, Scripts } from './redis-asking.ts';
import { noteSeen, waitingOf, type BucketBook, type KeptLease, type KeptTicket } from './redis-book.ts';
import type { Grants } from './redis-grants.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import type { Settling } from './redis-settling.ts';
import { admitCall, cancelCall, readAdmit, readCancel } from './scripts.ts';

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
  readonly grants: Pick<Grants, 'absorb' | 'deliver'>;
  readonly settle: Settling['settle'];
}): Tickets {
  const { scripts, link, clock, books, bookOf, settle } = parts;
  const { asking, ask, background, positioned, stored } = scripts;
  const { absorb, deliver } = parts.grants;

  const admit = async (admission: Admission): Promise<AdmissionReply> => {
    const book = bookOf(admission.bucket);
    const ticket = createTicket(admission, 'entering', clock.monotonic());
    book.tickets.set(admission.ticket, ticket);
    let asked: Asked<ReturnType<typeof readAdmit>>;
    try {
      const call = admitCall(asking(book), stored(admission));
      asked = await ask(book, call, (raw) => readAdmit(raw, admission), admission.lane);
    } catch (failure) {
      if (book.tickets.get(admission.ticket) === ticket && ticket.state === 'entering') {
        book.tickets.delete(admission.ticket);
        // Redis may have entered it all the same. Is it there, only this reply was wrong.
        if (failure instanceof RedisAway && link.isUp) tellCancelled(book, admission.ticket);
        else if (failure instanceof RedisAway) book.moved.add(admission.ticket);
      }
      // Nobody waits for it any more, or only the reply is missing: its grant came otherwise, and it may wait again since,
      // here or where waiting calls went.
      const isKept = book.tickets.get(admission.ticket) === ticket && ticket.state === 'granted';
      const isPlaced = isKept || ticket.state === 'waiting' || ticket.cancelled;
      if (!(failure instanceof RedisAway && isPlaced)) throw failure;
      return grantUnderWay;
    }
    const { reply, sentAt } = asked;
    // A bucket in which nothing of this replica was has most likely expired, as any that nobody uses: it is a new one.
    // While it is closed it does not expire.
    const isAnother = reply.born !== book.born && book.born !== null;
    if (isAnother && book.closedUntil <= sentAt && !isInRedis(book, sentAt)) {
      book.born = null;
      await scripts.askForLosses(book, reply);
    }
    noteSeen(book, sentAt);
    if (reply.code !== 'granted' && reply.code !== 'queued') {
      book.tickets.delete(admission.ticket);
      absorb(book, reply, sentAt);
      const { code: reason, heldBy, retryInMs, ahead } = reply;
      return { kind: 'refused', reason, heldBy, retryInMs, ahead };
    }
    ticket.order = reply.order;
    if (ticket.state === 'entering') {
      ticket.state = 'waiting';
      ticket.knownAt = sentAt;
    }
    absorb(book, reply, sentAt);
    if (reply.code === 'granted') {
      let handed: KeptLease | null = null;
      deliver(book, reply.grant, reply.now, sentAt, (lease) => (handed = lease));
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

  /** A ticket or a lease of this replica was in the bucket before a command that was sent at `at`. */
  const isInRedis = (book: BucketBook, at: number): boolean =>
    book.leases.size > 0 ||
    [...book.tickets.values()].some(({ state, knownAt }) => state === 'waiting' && knownAt < at);

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
      ask(book, admitCall(asking(book), admission), (raw) => readAdmit(raw, admission)).then(
        ({ reply, sentAt }) => {
          if (ticket.state === 'waiting') ticket.knownAt = sentAt;
          noteSeen(book, sentAt);
          absorb(book, reply, sentAt);
          if (reply.code === 'granted') deliver(book, reply.grant, reply.now, sentAt);
          else if (ticket.cancelled) tellCancelled(book, admission.ticket);
        },
        (failure: unknown) => {
          // Redis is there and has answered wrongly: no return of it is to be waited for.
          if (link.isUp && isOutside())
            clock.after(enterAgainMs, () => isOutside() && enterAgain(book, ticket));
          throw failure;
        },
      ),
    );
  };

  const tellCancelled = (book: BucketBook, ticket: string): void =>
    background(
      ask(book, cancelCall(asking(book), ticket), readCancel).then(({ reply, sentAt }) =>
        absorb(book, reply, sentAt),
      ),
    );

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
