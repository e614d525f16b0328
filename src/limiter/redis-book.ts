/**
 * What this replica knows of its own calls in one bucket: tickets, leases, and the bucket as the last replies told it.
 * Redis may lose everything; this book is what it is rebuilt from. Data only.
 */
import type { Admission, BucketKey, Grant, MeterSnapshot } from './limiter.ts';
import { Outbox } from './outbox.ts';
import { replicaLifeMs } from './pump.policy.ts';
import type { ToldGrant } from './reply-codec.ts';

/** Redis takes a replica for dead that it has not seen for 5 s; a second for the ways there. */
const silentMs = replicaLifeMs - 1_000;

/** A lease is taken for lost this long before Redis takes it for lost: a tick and its reply. Milliseconds. */
export const fenceMs = 2_000;

/** A call of this replica. `waiting` and `granted` are what Redis was last known to think. */
export interface KeptTicket {
  admission: Admission;
  /** Its position in the lane; `null` until Redis told one. */
  order: number | null;
  /** Monotonic milliseconds. */
  readonly arrivedAt: number;
  state: 'entering' | 'waiting' | 'granted';
  /** Left while it was being entered. */
  cancelled: boolean;
  /** Monotonic milliseconds since which Redis is known to have it waiting. */
  knownAt: number;
  /** A grant of it was dropped before it came here (again): Redis forgets a ticket with its dropped grant. */
  isDoubtful: boolean;
}

/** A lease of this replica, from the grant to its settlement. */
export class KeptLease implements Grant {
  readonly ticket: string;
  readonly bucket: BucketKey;
  readonly lane: string;
  readonly lease: string;
  readonly leaseMs: number;
  /** The lane has a cap: another holder at the same time would be an overlap. */
  readonly capped: boolean;
  expiresAt: number;
  /** Redis lost it, or this process noticed too late that it ran out: counted, once. */
  lost = false;
  /** Set while the grant is kept from the call (a new epoch): cancels the timer that hands it over. */
  cancelHold: (() => void) | null = null;

  constructor(bucket: BucketKey, told: ToldGrant, leaseMs: number, capped: boolean, expiresAt: number) {
    this.ticket = told.ticket;
    this.bucket = bucket;
    this.lane = told.lane;
    this.lease = told.lease;
    this.leaseMs = leaseMs;
    this.capped = capped;
    this.expiresAt = expiresAt;
  }
}

export interface BucketBook {
  readonly key: BucketKey;
  readonly tickets: Map<string, KeptTicket>;
  readonly leases: Map<string, KeptLease>;
  /** Events on their way. */
  readonly outbox: Outbox;
  /** Birth of the bucket's data as last told; `null` = not known. */
  born: number | null;
  /** Redis' time of the latest reply, comparable within one life. */
  toldAt: number;
  /** Monotonic milliseconds of the last loss of the bucket's data; `null` = none seen. */
  lostAt: number | null;
  /** Until then grants are returned: others have not entered their tickets again yet. Monotonic milliseconds. */
  settlingUntil: number;
  /** Tickets that Redis may still have since it went away, and that do not wait for it any more. */
  readonly moved: Set<string>;
  /** Monotonic milliseconds at which another pump may grant; `null` = never by itself. */
  nextAt: number | null;
  /** Cancels the timer of the next pump, and when it fires. */
  cancelWake: (() => void) | null;
  wakeAt: number | null;
  /** This replica has promised to pump at `nextAt`, whoever waits; else it waits a little longer than told. */
  leads: boolean;
  closedUntil: number;
  /** Redis said so far that the bucket is closed until this time at least: less later on means that it lost that. */
  closedAtLeast: number;
  meters: readonly MeterSnapshot[];
  metersAt: number;
  usedAt: number;
  /** Monotonic milliseconds of the latest command that showed Redis that this replica lives. */
  seenAt: number;
  /**
   * The next tick enters waiting tickets again, whatever their count is in Redis: others may stand for them, such as came
   * late, or leases whose settlement was lost with them.
   */
  isDoubtful: boolean;
  ticking: boolean;
}

export const createBook = (key: BucketKey, now: number): BucketBook => ({
  key,
  tickets: new Map(),
  leases: new Map(),
  outbox: new Outbox(),
  born: null,
  toldAt: -Infinity,
  lostAt: null,
  settlingUntil: 0,
  moved: new Set(),
  nextAt: null,
  cancelWake: null,
  wakeAt: null,
  leads: false,
  closedUntil: 0,
  closedAtLeast: 0,
  meters: [],
  metersAt: 0,
  usedAt: now,
  seenAt: now,
  isDoubtful: false,
  ticking: false,
});

/** Tickets that wait, in the order of their lane. */
export const waitingOf = (book: BucketBook): KeptTicket[] =>
  [...book.tickets.values()]
    .filter(({ state }) => state === 'waiting')
    .sort((a, b) => (a.order === null || b.order === null ? 0 : a.order - b.order));

/** A ticket or a lease of this replica was in the bucket before what was sent at `at` (monotonic milliseconds). */
export const isInRedis = (book: BucketBook, at: number): boolean =>
  book.leases.size > 0 ||
  [...book.tickets.values()].some(({ state, knownAt }) => state === 'waiting' && knownAt < at);

/** Redis heard of this replica, after a silence perhaps in which it passed over tickets of the dead. */
export const noteSeen = (book: BucketBook, sentAt: number): void => {
  if (sentAt - book.seenAt > silentMs && countWaiting(book) > 0) book.isDoubtful = true;
  book.seenAt = Math.max(book.seenAt, sentAt);
};

export const countWaiting = (book: BucketBook): number => {
  let count = 0;
  for (const { state } of book.tickets.values()) if (state === 'waiting') count += 1;
  return count;
};
