/**
 * The end of leases: each is told to Redis once, again when its telling was lost, and later when Redis is away.
 *
 * Owns: which leases have ended here, what of that Redis has not been told. Refuses to own: where a ticket that goes back
 * waits while Redis is away (`away-limiter.ts`).
 * Keeps: a settlement is told until Redis knows it; a lease that Redis lost is counted, once.
 */
import type { Clock } from '../clock.ts';
import type { Telemetry } from '../telemetry/events.ts';
import type { TimedLesson } from './lessons.policy.ts';
import type { BucketKey, LimiterListener, Settlement } from './limiter.ts';
import type { Positioned, Scripts } from './redis-asking.ts';
import { fenceMs, type BucketBook, type KeptLease, type KeptTicket } from './redis-book.ts';
import type { RedisLink } from './redis-link.ts';
import { atOnce, goesBack, withoutTicket } from './settlements.policy.ts';

/** A settlement is not told again within this time: it may still be on its way. Milliseconds. */
const tellAgainMs = 1_000;
/** Tokens of ended leases are remembered this long: a reply on its way may still name them as grants. Milliseconds. */
const endedMs = 30_000;
/** Settlements kept for a Redis that is away. */
const maxPending = 20_000;
/** Of those that Redis answered wrongly, so many are told again at a time. */
const mostAgain = 64;

interface Pending {
  readonly lease: KeptLease;
  readonly settlement: Settlement;
  readonly lesson: TimedLesson | null;
  /** Monotonic milliseconds. */
  readonly at: number;
}

export interface Settling {
  /** Ends the lease and tells Redis; a ticket that goes back waits again. */
  settle(lease: KeptLease, asked: Settlement, lesson: TimedLesson | null): Promise<void>;
  /** Redis granted what nobody waits for here. */
  dropStray(book: BucketBook, lease: KeptLease): void;
  /** Redis names a lease that has ended here: its settlement was lost with Redis' data, or is still on its way. */
  tellAgain(book: BucketBook, lease: string): void;
  hasEnded(lease: string): boolean;
  /** Ends the lease here; nothing is told. */
  end(book: BucketBook, lease: KeptLease): void;
  /** Redis lost the lease, or this process noticed too late that it ran out. */
  countLost(lease: KeptLease, reason: 'epoch' | 'stalled' | 'expired'): void;
  /** Tells what could not be told while Redis was away. */
  tellPending(): void;
  /** Tells again what Redis, being there, has answered wrongly; tickets that go back with it are entered again. */
  tellWrong(): void;
  /** Forgets leases that ended long ago. */
  forgetOld(): void;
}

export function createSettling(parts: {
  readonly scripts: Scripts;
  readonly link: Pick<RedisLink, 'isUp'>;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  readonly bookOf: (key: BucketKey) => BucketBook;
  readonly enterAgain: (book: BucketBook, ticket: KeptTicket) => void;
  readonly tellCancelled: (book: BucketBook, ticket: string) => void;
  /** A ticket went back to its line while Redis is away. True = somebody else keeps it now. */
  readonly onStranded: (admission: Positioned) => boolean;
}): Settling {
  const { scripts, link, clock, telemetry, listener, bookOf, enterAgain, tellCancelled, onStranded } = parts;
  const { ask, background } = scripts;
  const ended = new Map<string, number>();
  const pending = new Map<string, Pending>();
  /** Of `pending`, those for which no return of Redis is to be waited for. */
  const wrong = new Set<string>();
  /** Of `ended`, those that end nothing under way: told once more if Redis goes on naming them as grants. */
  const repeatable = new Map<string, Pending>();

  const countLost = (lease: KeptLease, reason: 'epoch' | 'stalled' | 'expired'): void => {
    if (lease.lost) return;
    lease.lost = true;
    if (lease.capped) telemetry.leaseLost(reason);
  };

  const dropStray = (book: BucketBook, lease: KeptLease): void => {
    const at = clock.monotonic();
    const told: Pending = { lease, settlement: { kind: 'dropped' }, lesson: null, at };
    ended.set(lease.lease, at);
    repeatable.set(lease.lease, told);
    background(tellSettled(book, told, undefined));
  };

  const tellAgain = (book: BucketBook, lease: string): void => {
    const told = repeatable.get(lease);
    const ticket = told?.settlement.kind === 'dropped' ? book.tickets.get(told.lease.ticket) : undefined;
    if (ticket?.state === 'waiting') ticket.isDoubtful = true;
    const now = clock.monotonic();
    if (told === undefined || now - told.at < tellAgainMs || pending.has(lease)) return;
    const again = { ...told, at: now };
    repeatable.set(lease, again);
    background(tellSettled(book, again, book.tickets.get(told.lease.ticket)));
  };

  const end = (book: BucketBook, lease: KeptLease): void => {
    lease.cancelHold?.();
    lease.cancelHold = null;
    book.leases.delete(lease.lease);
    ended.set(lease.lease, clock.monotonic());
  };

  const settle = async (lease: KeptLease, asked: Settlement, lesson: TimedLesson | null): Promise<void> => {
    const book = bookOf(lease.bucket);
    if (!book.leases.has(lease.lease)) return;
    // Whether Redis knew it still is not told where the reply to the first attempt is lost.
    if (lease.expiresAt + fenceMs < clock.monotonic()) countLost(lease, 'stalled');
    end(book, lease);
    // Known here whether Redis ever hears of it or not.
    const closedUntil = asked.kind === 'throttled' ? clock.monotonic() + asked.closeMs : 0;
    book.closedUntil = Math.max(book.closedUntil, closedUntil);
    book.closedAtLeast = Math.max(book.closedAtLeast, closedUntil);
    const ticket = book.tickets.get(lease.ticket);
    const requeue = goesBack(asked);
    const settlement = requeue && ticket === undefined ? withoutTicket(asked) : asked;
    if (ticket !== undefined && requeue) {
      ticket.state = 'waiting';
      ticket.knownAt = Infinity;
    } else {
      book.tickets.delete(lease.ticket);
    }
    const told: Pending = { lease, settlement, lesson, at: clock.monotonic() };
    if (requeue) repeatable.set(lease.lease, { ...told, settlement: atOnce(settlement), lesson: null });
    await tellSettled(book, told, ticket);
  };

  const tellSettled = async (
    book: BucketBook,
    told: Pending,
    ticket: KeptTicket | undefined,
  ): Promise<void> => {
    const { lease, settlement, lesson } = told;
    const waits = (): boolean => ticket?.state === 'waiting' && book.tickets.get(lease.ticket) === ticket;
    let waited = false;
    const asked = await ask<'settle'>(
      book,
      { kind: 'settle', lease: lease.lease, settlement, lesson },
      {
        take: ({ reply, sentAt, attempts }) => {
          waited = waits();
          if (!reply.known && attempts === 1) countLost(lease, 'expired');
          if (waited && ticket !== undefined) ticket.knownAt = sentAt;
        },
      },
    );
    if (asked.kind === 'applied') {
      if (waited && !asked.reply.known && ticket?.state === 'waiting') enterAgain(book, ticket);
      if (goesBack(settlement) && ticket?.cancelled === true) tellCancelled(book, lease.ticket);
    } else {
      if (pending.size < maxPending) {
        pending.set(lease.lease, told);
        if (link.isUp) wrong.add(lease.lease);
      }
      if (waits() && ticket !== undefined && onStranded(scripts.positioned(ticket)))
        book.tickets.delete(lease.ticket);
    }
    if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
      listener.onClosed(lease.bucket, settlement.closeMs);
    }
  };

  return {
    settle,
    dropStray,
    tellAgain,
    hasEnded: (lease) => ended.has(lease),
    end,
    countLost,

    tellPending() {
      wrong.clear();
      for (const [token, told] of pending) {
        pending.delete(token);
        background(tellSettled(bookOf(told.lease.bucket), aged(told, clock.monotonic()), undefined));
      }
    },

    tellWrong() {
      if (!link.isUp) return;
      for (const token of [...wrong].slice(0, mostAgain)) {
        wrong.delete(token);
        const told = pending.get(token);
        if (told === undefined || !pending.delete(token)) continue;
        const book = bookOf(told.lease.bucket);
        background(
          tellSettled(book, aged(told, clock.monotonic()), undefined).then(() => {
            const ticket = book.tickets.get(told.lease.ticket);
            const isOutside = ticket?.state === 'waiting' && ticket.knownAt === Infinity;
            if (isOutside && !pending.has(token)) enterAgain(book, ticket);
          }),
        );
      }
    },

    forgetOld() {
      const now = clock.monotonic();
      for (const [token, at] of ended) {
        if (now - at < endedMs) break;
        ended.delete(token);
        repeatable.delete(token);
      }
    },
  };
}

/** A settlement told late: its durations have gone by in part, and its ticket is looked after otherwise. */
function aged({ lease, settlement, lesson, at }: Pending, now: number): Pending {
  const lateMs = now - at;
  const plain = withoutTicket(settlement);
  return {
    lease,
    settlement:
      plain.kind === 'throttled'
        ? {
            ...plain,
            closeMs: Math.max(0, plain.closeMs - lateMs),
            sleepMs: Math.max(0, plain.sleepMs - lateMs),
          }
        : plain,
    lesson,
    at: now,
  };
}
