/**
 * The limiter over Redis: every operation is one script call on the bucket's keys; grants of this replica come back in
 * replies and, when another replica's call made them, by message.
 *
 * Owns: the book of this replica's tickets and leases, which Redis can be rebuilt from, and the parts that work on it:
 * asking (`redis-asking.ts`), what replies tell (`redis-grants.ts`), tickets, settlements, ticks. Refuses to own: whose
 * turn it is (the scripts), what happens while Redis is away (`away-limiter.ts`).
 */
import type { Clock } from '../clock.ts';
import type { Telemetry } from '../telemetry/events.ts';
import type {
  Admission,
  BucketKey,
  BucketSnapshot,
  Limiter,
  LimiterListener,
  Reconfiguration,
} from './limiter.ts';
import { createScripts, settlingMs, type Positioned } from './redis-asking.ts';
import { countWaiting, createBook, waitingOf, type BucketBook, type KeptTicket } from './redis-book.ts';
import { createGrants } from './redis-grants.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import { createSettling, type Settling } from './redis-settling.ts';
import { createTickets, type Tickets } from './redis-tickets.ts';
import { createTicks, type Ticks } from './redis-ticks.ts';
import type { Replica } from './replica.ts';
import { readMessage } from './reply-codec.ts';

/** Lanes that one event reconfigures at most. */
const lanesPerEvent = 64;

export interface RedisLimiter extends Limiter {
  /** Enters a ticket that has its place already; never refused. */
  reenter(admission: Admission): void;
  /** Hands over every waiting ticket, each with its position; the book forgets them. */
  takeWaiting(): Positioned[];
  /** Tickets that Redis may still have although nobody waits here for them leave it: handed over, refused, cancelled. */
  forgetMoved(): void;
  /**
   * Redis is back: tells what could not be told, enters waiting tickets again. `overlap`: calls may be in flight that
   * Redis does not know of; capped lanes wait one lease length. Nobody is sent for a moment: others come back later, with
   * tickets that stand before ours, and with sends of their own to tell (`spend`).
   */
  resume(overlap: boolean): void;
  /** Redis lost data, or may have. */
  onLoss(): void;
  /** A message on this replica's channel. */
  hear(message: string): void;
  /** Messages may have been missed: asks for them. */
  catchUp(): void;
  /**
   * Counts what was sent without Redis' knowledge, as one call that is not sent: its costs. False: there is no room for
   * them, nothing was counted.
   */
  spend(admission: Admission): Promise<boolean>;
  /** Order of a call that arrived at this monotonic time, among those of all replicas. */
  orderAt(urgency: number, at: number): number;
  /** Meters as they were when Redis was last heard, drained since, for a share of them; rather too full. */
  book(bucket: BucketKey): BucketSnapshot | null;
  start(): void;
}

export function createRedisLimiter(dependencies: {
  readonly link: RedisLink;
  readonly replica: Replica;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  /** A ticket went back to its line while Redis is away. True = somebody else keeps it now. */
  readonly onStranded: (admission: Positioned) => boolean;
}): RedisLimiter {
  const { link, replica, clock, listener } = dependencies;
  const books = new Map<BucketKey, BucketBook>();
  const bookOf = (key: BucketKey): BucketBook => {
    let book = books.get(key);
    if (book === undefined) books.set(key, (book = createBook(key, clock.monotonic())));
    return book;
  };
  const scripts = createScripts({
    ...dependencies,
    absorb: (book, reply, sentAt) => grants.absorb(book, reply, sentAt),
  });
  const { ask, background } = scripts;

  // The parts call each other in a circle: what a reply tells ends leases, and the end of a lease brings a reply.
  const enterAgain = (book: BucketBook, ticket: KeptTicket): void => tickets.enterAgain(book, ticket);
  const settling: Settling = createSettling({
    ...dependencies,
    scripts,
    bookOf,
    enterAgain,
    tellCancelled: (book, ticket) => tickets.tellCancelled(book, ticket),
  });
  const grants = createGrants({
    ...dependencies,
    scripts,
    settling,
    enterAgain,
    wakeAgain: (book) => ticks.wakeAgain(book),
  });
  const tickets: Tickets = createTickets({
    ...dependencies,
    scripts,
    books,
    bookOf,
    grants,
    settle: settling.settle,
  });
  const ticks: Ticks = createTicks({ ...dependencies, scripts, books, settling, enterAgain });

  /** Levels as told at `toldAt`, drained since. */
  const snapshotOf = (book: BucketBook, toldAt = book.metersAt): BucketSnapshot => {
    const now = clock.monotonic();
    return {
      bucket: book.key,
      closedMs: Math.max(0, book.closedUntil - now),
      waiting: countWaiting(book),
      inFlight: book.leases.size,
      meters: book.meters.map((meter) => ({
        ...meter,
        level: Math.max(0, meter.level - ((now - toldAt) * meter.limit) / meter.windowMs),
      })),
    };
  };

  return {
    admit: tickets.admit,

    async settle(grant, settlement, lesson) {
      const lease = books.get(grant.bucket)?.leases.get(grant.lease);
      if (lease !== undefined)
        await settling.settle(lease, settlement, lesson === null ? null : scripts.timed(lesson));
    },

    async learn({ bucket, lease }, lesson) {
      const book = books.get(bucket);
      if (book?.leases.has(lease) === true && link.isUp)
        await ask<'learn'>(book, { kind: 'learn', lease, lesson: scripts.timed(lesson) });
    },

    async charged({ bucket, lease }, edge) {
      const book = books.get(bucket);
      if (book?.leases.has(lease) === true && link.isUp)
        await ask<'charge'>(book, { kind: 'charge', lease, edge });
    },

    async reconfigure(change) {
      const book = books.get(change.bucket);
      if (book === undefined) return;
      applyToTickets(book, change);
      if (!link.isUp) return;
      const { setting } = change;
      for (let from = 0; from < change.lanes.length; from += lanesPerEvent) {
        const lanes = change.lanes.slice(from, from + lanesPerEvent);
        await ask<'reconfigure'>(book, { kind: 'reconfigure', setting, lanes });
      }
    },

    cancel: tickets.cancel,

    async forecast(bucket, ticket) {
      const book = books.get(bucket);
      if (book?.tickets.get(ticket)?.state !== 'waiting' || !link.isUp) return null;
      const asked = await ask<'forecast'>(book, { kind: 'forecast', ticket });
      return asked.kind === 'applied' ? asked.reply.standing : null;
    },

    snapshot: () => [...books.values()].map(snapshotOf),

    book(bucket) {
      const book = books.get(bucket);
      // What drained while Redis was there was used again, for all we know.
      return book === undefined || book.born === null ? null : snapshotOf(book, book.usedAt);
    },

    reenter: tickets.reenter,
    takeWaiting: tickets.takeWaiting,

    forgetMoved() {
      for (const book of books.values()) {
        for (const ticket of book.moved) if (!book.tickets.has(ticket)) tickets.tellCancelled(book, ticket);
        // Of those that were granted meanwhile the tick tells, and they are given back.
        if (book.moved.size > 0) background(ticks.tick(book));
        book.moved.clear();
      }
    },

    async spend(admission) {
      const book = bookOf(admission.bucket);
      const asked = await ask<'admit'>(book, { kind: 'admit', admission: scripts.stored(admission) });
      if (asked.kind === 'unavailable') throw new RedisAway();
      if (asked.reply.kind !== 'granted') return false;
      const { lease } = asked.reply;
      const settlement = { kind: 'unknown' } as const;
      const ended = await ask<'settle'>(book, { kind: 'settle', lease, settlement, lesson: null });
      if (ended.kind === 'unavailable') throw new RedisAway();
      return true;
    },

    resume(overlap) {
      const now = clock.monotonic();
      if (overlap) grants.noteOverlap();
      const settledAt = (replica.backAt() ?? now) + settlingMs;
      for (const book of books.values()) {
        book.settlingUntil = Math.max(book.settlingUntil, settledAt);
      }
      settling.tellPending();
      for (const book of books.values()) {
        for (const ticket of waitingOf(book)) enterAgain(book, ticket);
        ticks.wakeAgain(book);
      }
      ticks.tickAll();
    },

    onLoss() {
      for (const book of books.values()) book.isDoubtful = true;
      ticks.tickAll();
    },
    catchUp: ticks.tickAll,
    orderAt: scripts.orderAt,

    hear(text) {
      const message = readMessage(text);
      const book = bookOf(message.bucket);
      if (message.kind === 'closed') {
        book.closedUntil = clock.monotonic() + message.closedMs;
        listener.onClosed(message.bucket, message.closedMs);
        return;
      }
      // A message of a life that this replica has not seen yet: the next reply finds out what that means.
      if (message.born !== book.born) return background(ticks.look(book));
      if (!book.leads && book.nextAt !== null) book.nextAt = Math.max(book.nextAt, clock.monotonic());
      const { now, sentAt } = scripts.latest();
      for (const told of message.grants) grants.deliver(book, told, now, sentAt);
      ticks.wakeAgain(book);
    },

    start: ticks.start,

    async close() {
      ticks.close();
      for (const book of books.values()) {
        for (const lease of book.leases.values()) {
          const kind = lease.cancelHold === null ? 'unknown' : 'dropped';
          background(settling.settle(lease, { kind }, null));
        }
        for (const ticket of waitingOf(book)) background(tickets.cancel(book.key, ticket.admission.ticket));
      }
      await scripts.drained();
    },
  };
}

/** What has to be entered again later is entered under the settings of now. */
function applyToTickets(book: BucketBook, { setting, lanes }: Reconfiguration): void {
  const changed = new Map(lanes.map((lane) => [lane.lane, lane]));
  for (const ticket of book.tickets.values()) {
    const lane = changed.get(ticket.admission.lane);
    if (lane !== undefined) ticket.admission = { ...ticket.admission, ...lane, setting };
  }
}
