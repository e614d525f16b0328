/**
 * What every reply tells: whose turn it is now, when the next pump is due, which life of the bucket this is.
 *
 * Owns: taking told grants into the book and handing them to their calls, what a loss of Redis' data means for the
 * grants of a bucket. Refuses to own: ending leases (`redis-settling.ts`), entering tickets (`redis-tickets.ts`).
 * Keeps: a grant reaches its call once; a grant nobody waits for goes back whole; after a loss nobody is sent until all
 * replicas had time to enter their tickets again (order), and capped lanes wait one lease length (overlap).
 */
import type { Clock } from '../clock.ts';
import type { LimiterListener } from './limiter.ts';
import { fenceMs, KeptLease, waitingOf, type BucketBook, type KeptTicket } from './redis-book.ts';
import { settlingMs, type Scripts } from './redis-asking.ts';
import type { Settling } from './redis-settling.ts';
import type { Replica } from './replica.ts';
import type { BucketReply, ToldGrant } from './reply-codec.ts';

export interface Grants {
  /** Takes what the reply to a command sent at `sentAt` (monotonic milliseconds) tells of the bucket. */
  absorb(book: BucketBook, reply: BucketReply, sentAt: number): void;
  /**
   * Takes a told grant into the book and hands it to its call, now or when it may. `toldAt` is on Redis' clock, `sentAt`
   * is monotonic: both of the same reply.
   */
  deliver(
    book: BucketBook,
    told: ToldGrant,
    toldAt: number,
    sentAt: number,
    hand?: (lease: KeptLease) => void,
  ): void;
  /** From now on, for one lease length, calls may be in flight that Redis does not know of. */
  noteOverlap(): void;
}

export function createGrants(parts: {
  readonly scripts: Scripts;
  readonly clock: Clock;
  readonly replica: Pick<Replica, 'lostAt'>;
  readonly listener: LimiterListener;
  readonly settling: Settling;
  readonly enterAgain: (book: BucketBook, ticket: KeptTicket) => void;
  readonly wakeAgain: (book: BucketBook) => void;
}): Grants {
  const { scripts, clock, replica, listener, settling, enterAgain, wakeAgain } = parts;
  let overlapSince = -Infinity;

  const absorb = (book: BucketBook, reply: BucketReply, sentAt: number): void => {
    const now = clock.monotonic();
    // A reply may be read behind a later one: the first of a young bucket waits until it is known whether Redis lost data.
    const isOvertaken = reply.born === book.born && reply.now < book.toldAt;
    noticeBirth(book, reply, sentAt);
    if (!isOvertaken) {
      // Within one life it is a failover that lost the latest writes.
      if (now + reply.closedMs < book.closedAtLeast) keepClosed(book);
      book.closedAtLeast = reply.closedMs > 0 ? sentAt + reply.closedMs : 0;
      book.toldAt = reply.now;
      book.closedUntil = now + reply.closedMs;
      book.nextAt = reply.nextInMs === null ? null : now + reply.nextInMs;
      book.leads = reply.leads;
    }
    for (const told of reply.grants) deliver(book, told, reply.now, sentAt);
    wakeAgain(book);
  };

  /** Another birth than before: everything of the old life is gone. */
  const noticeBirth = (book: BucketBook, { born, now }: BucketReply, sentAt: number): void => {
    const before = book.born;
    if (born === before) return;
    book.born = born;
    const lostByAll = replica.lostAt();
    const isFirstSight = before === null && book.lostAt === null;
    const isYoung = born !== null && now - born < settlingMs;
    if (isFirstSight && !(isYoung && lostByAll !== null) && book.leases.size === 0) return;
    if (before !== null || isFirstSight) lose(book);
    if (born !== null) book.settlingUntil = Math.max(book.settlingUntil, sentAt + born + settlingMs - now);
  };

  /** Redis has forgotten that the bucket is closed, the upstream has not. */
  const keepClosed = (book: BucketBook): void => {
    book.settlingUntil = Math.max(book.settlingUntil, book.closedUntil);
  };

  const lose = (book: BucketBook): void => {
    const now = clock.monotonic();
    book.lostAt = now;
    keepClosed(book);
    for (const lease of book.leases.values()) {
      if (lease.cancelHold !== null) {
        lease.cancelHold();
        settling.end(book, lease);
        const ticket = book.tickets.get(lease.ticket);
        if (ticket !== undefined) ticket.state = 'waiting';
        continue;
      }
      settling.countLost(lease, 'epoch');
      lease.expiresAt = -Infinity;
    }
    for (const ticket of waitingOf(book)) enterAgain(book, ticket);
  };

  const deliver: Grants['deliver'] = (book, told, toldAt, sentAt, hand = listener.onGrant) => {
    if (book.leases.has(told.lease)) return;
    if (settling.hasEnded(told.lease)) return settling.tellAgain(book, told.lease);
    const ticket = book.tickets.get(told.ticket);
    const leaseMs = ticket?.admission.leaseMs ?? 0;
    const capped = ticket !== undefined && ticket.admission.maxInFlight !== null;
    const expiresAt = sentAt + (told.expiresAt - toldAt) - fenceMs;
    const lease = new KeptLease(book.key, told, leaseMs, capped, expiresAt);
    if (ticket === undefined || ticket.cancelled || ticket.state === 'granted')
      return settling.dropStray(book, lease);
    ticket.state = 'granted';
    book.leases.set(lease.lease, lease);
    const now = clock.monotonic();
    if (now < book.settlingUntil) {
      scripts.background(
        settling.settle(
          lease,
          { kind: 'returned', sleepMs: book.settlingUntil - now, because: 'backoff' },
          null,
        ),
      );
      return;
    }
    const heldUntil = capped ? quarantineUntil(book, leaseMs) : 0;
    if (now >= heldUntil) return hand(lease);
    lease.cancelHold = clock.after(heldUntil - now, () => {
      lease.cancelHold = null;
      listener.onGrant(lease);
    });
  };

  /** Calls of the lost epoch may still be under way until then. */
  const quarantineUntil = (book: BucketBook, leaseMs: number): number =>
    Math.max(book.lostAt ?? -Infinity, replica.lostAt() ?? -Infinity, overlapSince) + leaseMs;

  return {
    absorb,
    deliver,
    noteOverlap() {
      overlapSince = clock.monotonic();
    },
  };
}
