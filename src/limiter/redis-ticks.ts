/**
 * Once a second per bucket in use, and when the next grant may be possible: asks Redis, renews leases, enters tickets
 * again that were lost.
 *
 * Owns: the timers of ticks and pumps. Refuses to own: what a reply means (`redis-grants.ts`).
 * Keeps: room and a waiting ticket mean a grant within a tick even if messages are lost.
 */
import type { Clock } from '../clock.ts';
import type { BucketKey } from './limiter.ts';
import { leasesPerTick } from './event-codec.ts';
import type { Scripts } from './redis-asking.ts';
import {
  countWaiting,
  fenceMs,
  noteSeen,
  type BucketBook,
  type KeptLease,
  type KeptTicket,
} from './redis-book.ts';
import type { RedisLink } from './redis-link.ts';
import type { Settling } from './redis-settling.ts';

const tickMs = 1_000;
/** How long a replica that has not promised to pump waits beyond the time at which a pump is due. */
const followMs = 400;
const bookMemoryMs = 3_600_000;
/** Clients name buckets: of more than this many, those not used for a minute are forgotten. */
const manyBooks = 1_000;
const manyMemoryMs = 60_000;

export interface Ticks {
  /** Asks for what was missed in this bucket. */
  tick(book: BucketBook): Promise<void>;
  /** Asks for what was missed, whatever tick is under way. */
  look(book: BucketBook): Promise<void>;
  /** The same for every bucket in use. */
  tickAll(): void;
  /** Sets the timer of the bucket's next pump by what the last reply told. */
  wakeAgain(book: BucketBook): void;
  start(): void;
  close(): void;
}

export function createTicks(parts: {
  readonly scripts: Scripts;
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly books: Map<BucketKey, BucketBook>;
  readonly settling: Pick<Settling, 'countLost' | 'tellWrong' | 'forgetOld'>;
  readonly enterAgain: (book: BucketBook, ticket: KeptTicket) => void;
}): Ticks {
  const { scripts, link, clock, books, settling, enterAgain } = parts;
  const { ask, background } = scripts;
  let cancelTick = (): void => {};
  let closed = false;

  const tick = async (book: BucketBook): Promise<void> => {
    if (book.ticking) return;
    book.ticking = true;
    try {
      const leases = [...book.leases.values()];
      noticeStalls(leases);
      for (let from = 0; from === 0 || from < leases.length; from += leasesPerTick) {
        await tickSome(book, leases.slice(from, from + leasesPerTick));
      }
    } finally {
      book.ticking = false;
    }
  };

  const noticeStalls = (leases: readonly KeptLease[]): void => {
    const now = clock.monotonic();
    for (const lease of leases) if (lease.expiresAt + fenceMs < now) settling.countLost(lease, 'stalled');
  };

  const tickSome = async (book: BucketBook, leases: readonly KeptLease[]): Promise<void> => {
    const known = [...book.tickets.values()].filter(
      ({ state, knownAt }) => state === 'waiting' && knownAt < Infinity,
    );
    const held = leases.filter(({ lease }) => book.leases.has(lease));
    let stillWaiting: readonly KeptTicket[] = [];
    let isOneLost = false;
    const asked = await ask<'tick'>(
      book,
      { kind: 'tick', leases: held.map(({ lease }) => lease) },
      {
        take: ({ reply, bucket, sentAt }) => {
          if (bucket.born === book.born && bucket.born !== null) {
            for (const lease of held) {
              if (!lease.lost) lease.expiresAt = Math.max(lease.expiresAt, sentAt + lease.leaseMs - fenceMs);
            }
          }
          stillWaiting = known.filter(
            (ticket) => ticket.state === 'waiting' && ticket.knownAt < sentAt && !ticket.cancelled,
          );
          noteSeen(book, sentAt);
          isOneLost = reply.waitingHere + bucket.unnamed < stillWaiting.length || book.isDoubtful;
          book.isDoubtful = false;
          book.meters = reply.meters;
          book.metersAt = clock.monotonic();
        },
      },
    );
    if (asked.kind === 'unavailable') return;
    for (const ticket of stillWaiting) {
      const isLost = isOneLost || ticket.isDoubtful;
      if (isLost && ticket.state === 'waiting' && ticket.knownAt < Infinity) enterAgain(book, ticket);
    }
  };

  /** Who promised it pumps in time, also for others; those who wait for its pump look later, in case it died. */
  const wakeAgain = (book: BucketBook): void => {
    const isDue = book.nextAt !== null && (book.leads || countWaiting(book) > 0);
    const wanted = isDue ? (book.nextAt ?? 0) + (book.leads ? 0 : followMs) : null;
    if (wanted === book.wakeAt) return;
    book.cancelWake?.();
    book.cancelWake = null;
    book.wakeAt = null;
    if (wanted === null || closed || !link.isUp) return;
    book.wakeAt = wanted;
    book.cancelWake = clock.after(wanted - clock.monotonic(), () => {
      book.cancelWake = null;
      book.wakeAt = null;
      background(tickSome(book, []));
    });
  };

  const isBusy = (book: BucketBook): boolean => book.tickets.size > 0 || book.leases.size > 0;

  const tickAll = (): void => {
    if (!link.isUp) return;
    for (const book of books.values()) if (isBusy(book)) background(tick(book));
  };

  const scheduleTick = (): void => {
    cancelTick = clock.after(tickMs, () => {
      tickAll();
      const now = clock.monotonic();
      settling.tellWrong();
      settling.forgetOld();
      const memoryMs = books.size > manyBooks ? manyMemoryMs : bookMemoryMs;
      for (const book of books.values()) {
        if (!isBusy(book) && book.moved.size === 0 && now - book.usedAt > memoryMs) books.delete(book.key);
      }
      if (!closed) scheduleTick();
    });
  };

  return {
    tick,
    look: (book) => tickSome(book, []),
    tickAll,
    wakeAgain,
    start: scheduleTick,
    close() {
      closed = true;
      cancelTick();
      for (const book of books.values()) book.cancelWake?.();
    },
  };
}
