/**
 * The limiter over Redis: every operation is one script call on the bucket's keys; grants of this replica come back in
 * replies and, when another replica's call made them, by message.
 *
 * Owns: the book of this replica's tickets and leases, and rebuilding Redis from it: tickets that Redis does not know
 * are entered again at their place, settlements that could not be told are told later. Refuses to own: whose turn it is
 * (the scripts), what happens while Redis is away (`away-limiter.ts`).
 * Keeps: a grant reaches its call once; a grant nobody waits for goes back whole; after a loss nobody is sent until all
 * replicas had time to enter their tickets again (order), and capped lanes wait one lease length (overlap).
 */
import type { Clock } from '../clock.ts';
import type { RedisCommand, Telemetry } from '../telemetry/events.ts';
import { orderUnit, sequencePerMs } from './bucket-state.policy.ts';
import type {
  Admission,
  AdmissionReply,
  BucketKey,
  BucketSnapshot,
  Grant,
  Lesson,
  Limiter,
  LimiterListener,
  Settlement,
} from './limiter.ts';
import {
  countWaiting,
  createBook,
  KeptLease,
  waitingOf,
  type BucketBook,
  type KeptTicket,
} from './redis-book.ts';
import { runScript } from './redis-commands.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import type { Replica } from './replica.ts';
import {
  admitCall,
  cancelCall,
  chargedCall,
  forecastCall,
  learnCall,
  leasesPerTick,
  readAdmit,
  readCancel,
  readForecast,
  readLease,
  readMessage,
  readTick,
  settleCall,
  tickCall,
  type BucketReply,
  type ScriptCall,
  type ToldGrant,
} from './scripts.ts';

const tickMs = 1_000;
/** A lease is taken for lost this long before Redis takes it for lost: a tick and its reply. */
const fenceMs = 2_000;
/** After a loss every replica has noticed within a tick and entered its tickets again. */
const settlingMs = 1_300;
/** How long a replica that has not promised to pump waits beyond the time at which a pump is due. */
const followMs = 400;
/** Tokens of ended leases are remembered this long: a reply on its way may still name them as grants. */
const endedMs = 30_000;
const bookMemoryMs = 3_600_000;
/** Stands for "plenty" where a lane's places are told. */
const plenty = 1_000_000_000;
/** Settlements kept for a Redis that is away. */
const maxPending = 20_000;

export interface RedisLimiter extends Limiter {
  /** Enters a ticket that has its place already; never refused. */
  reenter(admission: Admission): void;
  /** Hands over every waiting ticket, each with its place; the book forgets them. */
  takeWaiting(): Admission[];
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
  /** Place of a call that arrived at this monotonic time, among those of all replicas. */
  placeAt(urgency: number, at: number): number;
  /** Meters as they were when Redis was last heard, drained since, for a share of them; rather too full. */
  book(bucket: BucketKey): BucketSnapshot | null;
  start(): void;
}

interface Asked<T> {
  readonly reply: T;
  /** Monotonic milliseconds at which the attempt that was answered was sent. */
  readonly sentAt: number;
  readonly attempts: number;
}

interface Pending {
  readonly lease: KeptLease;
  readonly settlement: Settlement;
  readonly lesson: Lesson | null;
  readonly at: number;
}

export function createRedisLimiter(dependencies: {
  readonly link: RedisLink;
  readonly replica: Replica;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  /** A ticket went back to its line while Redis is away. True = somebody else keeps it now. */
  readonly onStranded: (admission: Admission) => boolean;
}): RedisLimiter {
  const { link, replica, clock, telemetry, listener, onStranded } = dependencies;
  const books = new Map<BucketKey, BucketBook>();
  const ended = new Map<string, number>();
  const pending = new Map<string, Pending>();
  /** Of `ended`, those that end nothing under way: told once more if Redis goes on naming them as grants. */
  const repeatable = new Map<string, Pending>();
  /** Commands under way that `close` waits for. */
  const open = new Set<Promise<unknown>>();
  /** Redis' clock against ours, as of the latest reply. */
  let clockPair = { now: 0, sentAt: 0 };
  let overlapSince = -Infinity;
  let cancelTick = (): void => {};
  let closed = false;

  const bookOf = (key: BucketKey): BucketBook => {
    let book = books.get(key);
    if (book === undefined) books.set(key, (book = createBook(key, clock.monotonic())));
    return book;
  };

  const background = (work: Promise<unknown>): void => {
    const tracked = work
      .catch((failure: unknown) => {
        if (!(failure instanceof RedisAway)) telemetry.log.bug('a limiter operation failed', failure);
      })
      .finally(() => open.delete(tracked));
    open.add(tracked);
  };

  const ask = async <T extends BucketReply>(
    book: BucketBook,
    call: ScriptCall,
    read: (reply: unknown) => T,
    repeated: () => ScriptCall = () => call,
  ): Promise<Asked<T>> => {
    let sentAt = 0;
    let attempts = 0;
    const command: RedisCommand = call.script;
    const reply = await link.run(
      command,
      async (client) => {
        sentAt = clock.monotonic();
        return read(await runScript(client, attempts > 1 ? repeated() : call));
      },
      { onAttempts: (count) => (attempts = count) },
    );
    clockPair = { now: reply.now, sentAt };
    book.usedAt = sentAt;
    return { reply, sentAt, attempts };
  };

  /** Behind everything that Redis has placed before `at` (monotonic), before everything that arrives later. */
  const placeAt = (urgency: number, at: number): number => {
    const { now, sentAt } = clockPair;
    const time = now === 0 ? clock.now() + at - clock.monotonic() : now + at - sentAt;
    return urgency * orderUnit + Math.floor(time * sequencePerMs);
  };

  const asking = (book: BucketBook) => ({ bucket: book.key, replica: replica.id });

  // ---- what every reply tells -------------------------------------------------------------------------------------

  const absorb = (book: BucketBook, reply: BucketReply, sentAt: number): void => {
    const now = clock.monotonic();
    noticeBirth(book, reply, sentAt);
    book.closedUntil = now + reply.closedMs;
    book.nextAt = reply.nextInMs === null ? null : now + reply.nextInMs;
    book.leads = reply.leads;
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

  const lose = (book: BucketBook): void => {
    const now = clock.monotonic();
    book.lostAt = now;
    // Redis has forgotten that the bucket is closed, the upstream has not.
    book.settlingUntil = Math.max(book.settlingUntil, book.closedUntil);
    book.widened.clear();
    for (const lease of book.leases.values()) {
      if (lease.cancelHold !== null) {
        lease.cancelHold();
        end(book, lease);
        const ticket = book.tickets.get(lease.ticket);
        if (ticket !== undefined) ticket.state = 'waiting';
        continue;
      }
      countLost(lease, 'epoch');
      lease.expiresAt = -Infinity;
    }
    for (const ticket of waitingOf(book)) enterAgain(book, ticket);
  };

  const countLost = (lease: KeptLease, reason: 'epoch' | 'stalled' | 'expired'): void => {
    if (lease.lost) return;
    lease.lost = true;
    if (lease.capped) telemetry.leaseLost(reason);
  };

  // ---- grants -----------------------------------------------------------------------------------------------------

  /** Takes a told grant into the book and hands it to its call, now or when it may. True = the ticket holds it. */
  const deliver = (
    book: BucketBook,
    told: ToldGrant,
    toldAt: number,
    sentAt: number,
    hand: (lease: KeptLease) => void = (lease) => listener.onGrant(lease),
  ): void => {
    if (book.leases.has(told.lease)) return;
    if (ended.has(told.lease)) return tellAgain(book, told.lease);
    const ticket = book.tickets.get(told.ticket);
    const leaseMs = ticket?.admission.leaseMs ?? 0;
    const capped = ticket !== undefined && ticket.admission.maxInFlight !== null;
    const expiresAt = sentAt + (told.expiresAt - toldAt) - fenceMs;
    const lease = new KeptLease(book.key, told, leaseMs, capped, expiresAt);
    if (ticket === undefined || ticket.cancelled || ticket.state === 'granted') return dropStray(book, lease);
    ticket.state = 'granted';
    book.leases.set(lease.lease, lease);
    const now = clock.monotonic();
    if (now < book.settlingUntil) {
      background(settle(lease, { kind: 'returned', sleepMs: book.settlingUntil - now }, null));
      return;
    }
    if (book.settlingUntil > 0 && !book.widened.has(lease.lane)) {
      book.widened.add(lease.lane);
      background(tellCharged(book, lease, plenty, 0));
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

  const dropStray = (book: BucketBook, lease: KeptLease): void => {
    const at = clock.monotonic();
    const told: Pending = { lease, settlement: { kind: 'dropped' }, lesson: null, at };
    ended.set(lease.lease, at);
    repeatable.set(lease.lease, told);
    background(tellSettled(book, told, undefined));
  };

  /** Redis names a lease that has ended here: its settlement was lost with Redis' data, or is still on its way. */
  const tellAgain = (book: BucketBook, lease: string): void => {
    const told = repeatable.get(lease);
    const now = clock.monotonic();
    if (told === undefined || now - told.at < tickMs || pending.has(lease)) return;
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

  // ---- tickets ----------------------------------------------------------------------------------------------------

  const admit = async (admission: Admission): Promise<AdmissionReply> => {
    const arrivedAt = clock.monotonic();
    const book = bookOf(admission.bucket);
    const ticket: KeptTicket = {
      admission,
      order: admission.order,
      state: 'entering',
      cancelled: false,
      knownAt: Infinity,
    };
    book.tickets.set(admission.ticket, ticket);
    let asked: Asked<ReturnType<typeof readAdmit>>;
    try {
      const first = admitCall(asking(book), admission);
      // Redis is late for this call, and may be in time for later ones on other connections: its place is its arrival.
      const placed = () => admission.order ?? placeAt(admission.urgency, arrivedAt);
      const repeated = () => admitCall(asking(book), { ...admission, order: placed() });
      asked = await ask(book, first, (raw) => readAdmit(raw, admission), repeated);
    } catch (failure) {
      if (book.tickets.get(admission.ticket) === ticket && ticket.state === 'entering') {
        book.tickets.delete(admission.ticket);
        // Redis may have entered it all the same. Is it there, only this reply was wrong.
        if (failure instanceof RedisAway && link.isUp) tellCancelled(book, admission.ticket);
        else if (failure instanceof RedisAway) book.moved.add(admission.ticket);
      }
      throw failure;
    }
    const { reply, sentAt } = asked;
    if (book.born === null && reply.born !== null && reply.now - reply.born < settlingMs)
      await askForLosses();
    if (reply.code !== 'granted' && reply.code !== 'queued') {
      book.tickets.delete(admission.ticket);
      absorb(book, reply, sentAt);
      return { kind: 'refused', reason: reply.code, retryInMs: reply.retryInMs };
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
      return { kind: 'queued', forecastMs: 0, ahead: 0 };
    }
    // Who comes with a place is never refused by the script.
    const isUnjudged = asked.attempts > 1 && admission.order === null && ticket.state === 'waiting';
    const isTooLong = isUnjudged && reply.forecastMs > admission.maxWaitMs;
    if (ticket.cancelled || isTooLong) {
      book.tickets.delete(admission.ticket);
      tellCancelled(book, admission.ticket);
      if (isTooLong) return { kind: 'refused', reason: 'wait_too_long', retryInMs: reply.forecastMs };
    }
    return { kind: 'queued', forecastMs: reply.forecastMs, ahead: reply.ahead };
  };

  /** The bucket is new to this replica and young: was it there before? Asked only then. */
  const askForLosses = async (): Promise<void> => {
    try {
      await link.run('other', (client) => replica.beat(client));
    } catch (failure) {
      if (!(failure instanceof RedisAway)) throw failure;
    }
  };

  /** A ticket that waits here and that Redis does not know. */
  const enterAgain = (book: BucketBook, ticket: KeptTicket): void => {
    if (!link.isUp) return;
    ticket.knownAt = Infinity;
    // Without a place: behind everything that Redis placed until now.
    ticket.order ??= placeAt(ticket.admission.urgency, clock.monotonic());
    const admission = { ...ticket.admission, order: ticket.order };
    background(
      ask(book, admitCall(asking(book), admission), (raw) => readAdmit(raw, admission)).then(
        ({ reply, sentAt }) => {
          if (ticket.state === 'waiting') ticket.knownAt = sentAt;
          absorb(book, reply, sentAt);
          if (reply.code === 'granted') deliver(book, reply.grant, reply.now, sentAt);
          else if (ticket.cancelled) tellCancelled(book, admission.ticket);
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

  // ---- leases -----------------------------------------------------------------------------------------------------

  const goesBack = (settlement: Settlement): boolean =>
    settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);

  const settle = async (lease: KeptLease, asked: Settlement, lesson: Lesson | null): Promise<void> => {
    const book = bookOf(lease.bucket);
    if (!book.leases.has(lease.lease)) return;
    end(book, lease);
    const ticket = book.tickets.get(lease.ticket);
    const requeue = goesBack(asked);
    const settlement = requeue && ticket === undefined ? withoutTicket(asked) : asked;
    if (ticket !== undefined && requeue) {
      ticket.state = 'waiting';
      ticket.knownAt = Infinity;
      ticket.admission = withCosts(ticket.admission, asked);
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
    try {
      const call = settleCall(asking(book), lease.lease, settlement, lesson);
      const { reply, sentAt, attempts } = await ask(book, call, readLease);
      const waits = ticket?.state === 'waiting' && book.tickets.get(lease.ticket) === ticket;
      if (!reply.leaseKnown && attempts === 1) countLost(lease, 'expired');
      if (waits) ticket.knownAt = sentAt;
      absorb(book, reply, sentAt);
      if (waits && !reply.leaseKnown && ticket.state === 'waiting') enterAgain(book, ticket);
      if (goesBack(settlement) && ticket?.cancelled === true) tellCancelled(book, lease.ticket);
    } catch (failure) {
      if (!(failure instanceof RedisAway)) throw failure;
      if (pending.size < maxPending) pending.set(lease.lease, told);
      const waits = ticket?.state === 'waiting' && book.tickets.get(lease.ticket) === ticket;
      if (waits && onStranded(placed(ticket))) book.tickets.delete(lease.ticket);
    }
    if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
      listener.onClosed(lease.bucket, settlement.closeMs);
    }
  };

  const tellCharged = async (
    book: BucketBook,
    lease: KeptLease,
    places: number,
    nextPlaceMs: number,
  ): Promise<void> => {
    const { reply, sentAt } = await ask(
      book,
      chargedCall(asking(book), lease.lease, places, nextPlaceMs),
      readLease,
    );
    absorb(book, reply, sentAt);
  };

  const placed = ({ admission, order }: KeptTicket): Admission => ({ ...admission, order });

  // ---- ticks and pumps --------------------------------------------------------------------------------------------

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
    for (const lease of leases) if (lease.expiresAt + fenceMs < now) countLost(lease, 'stalled');
  };

  const tickSome = async (book: BucketBook, leases: readonly KeptLease[]): Promise<void> => {
    const known = [...book.tickets.values()].filter(
      ({ state, knownAt }) => state === 'waiting' && knownAt < Infinity,
    );
    const held = leases.filter(({ lease }) => book.leases.has(lease));
    const call = tickCall(
      asking(book),
      held.map(({ lease }) => lease),
    );
    const { reply, sentAt } = await ask(book, call, readTick);
    if (reply.born === book.born && reply.born !== null) {
      for (const lease of held) {
        if (!lease.lost) lease.expiresAt = Math.max(lease.expiresAt, sentAt + lease.leaseMs - fenceMs);
      }
    }
    const stillWaiting = known.filter(
      (ticket) => ticket.state === 'waiting' && ticket.knownAt < sentAt && !ticket.cancelled,
    );
    const told = reply.waitingHere + reply.unnamed;
    book.meters = reply.meters;
    book.metersAt = clock.monotonic();
    absorb(book, reply, sentAt);
    if (told < stillWaiting.length) {
      for (const ticket of stillWaiting) {
        if (ticket.state === 'waiting' && ticket.knownAt < Infinity) enterAgain(book, ticket);
      }
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
      for (const [token, at] of ended) {
        if (now - at < endedMs) break;
        ended.delete(token);
        repeatable.delete(token);
      }
      for (const book of books.values()) {
        if (!isBusy(book) && now - book.usedAt > bookMemoryMs) books.delete(book.key);
      }
      if (!closed) scheduleTick();
    });
  };

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
    admit,

    async settle(grant: Grant, settlement, lesson) {
      const lease = books.get(grant.bucket)?.leases.get(grant.lease);
      if (lease !== undefined) await settle(lease, settlement, lesson);
    },

    async learn(grant, lesson) {
      const book = books.get(grant.bucket);
      if (book?.leases.has(grant.lease) !== true || !link.isUp) return;
      try {
        const { reply, sentAt } = await ask(book, learnCall(asking(book), grant.lease, lesson), readLease);
        absorb(book, reply, sentAt);
      } catch (failure) {
        if (!(failure instanceof RedisAway)) throw failure;
      }
    },

    async charged(grant, places, nextPlaceMs) {
      const book = books.get(grant.bucket);
      const lease = book?.leases.get(grant.lease);
      if (book === undefined || lease === undefined || !link.isUp) return;
      try {
        await tellCharged(book, lease, places, nextPlaceMs);
      } catch (failure) {
        if (!(failure instanceof RedisAway)) throw failure;
      }
    },

    cancel,

    async forecast(bucket, ticket) {
      const book = books.get(bucket);
      if (book?.tickets.get(ticket)?.state !== 'waiting' || !link.isUp) return null;
      try {
        const { reply, sentAt } = await ask(book, forecastCall(asking(book), ticket), readForecast);
        clockPair = { now: reply.now, sentAt };
        return reply.standing;
      } catch (failure) {
        if (failure instanceof RedisAway) return null;
        throw failure;
      }
    },

    snapshot: () => [...books.values()].map(snapshotOf),

    book(bucket) {
      const book = books.get(bucket);
      // What drained while Redis was there was used again, for all we know.
      return book === undefined || book.born === null ? null : snapshotOf(book, book.usedAt);
    },

    reenter(admission) {
      const book = bookOf(admission.bucket);
      const ticket: KeptTicket = {
        admission,
        order: admission.order,
        state: 'waiting',
        cancelled: false,
        knownAt: Infinity,
      };
      book.tickets.set(admission.ticket, ticket);
      enterAgain(book, ticket);
    },

    takeWaiting() {
      const taken: Admission[] = [];
      for (const book of books.values()) {
        for (const ticket of waitingOf(book)) {
          book.tickets.delete(ticket.admission.ticket);
          book.moved.add(ticket.admission.ticket);
          taken.push(placed(ticket));
        }
      }
      return taken;
    },

    forgetMoved() {
      for (const book of books.values()) {
        for (const ticket of book.moved) if (!book.tickets.has(ticket)) tellCancelled(book, ticket);
        // Of those that were granted meanwhile the tick tells, and they are given back.
        if (book.moved.size > 0) background(tick(book));
        book.moved.clear();
      }
    },

    async spend(admission) {
      const book = bookOf(admission.bucket);
      const { reply, sentAt } = await ask(book, admitCall(asking(book), admission), (raw) =>
        readAdmit(raw, admission),
      );
      absorb(book, reply, sentAt);
      if (reply.code !== 'granted') return false;
      const { lease } = reply.grant;
      const ended_ = await ask(book, settleCall(asking(book), lease, { kind: 'unknown' }, null), readLease);
      absorb(book, ended_.reply, ended_.sentAt);
      return true;
    },

    resume(overlap) {
      const now = clock.monotonic();
      if (overlap) overlapSince = now;
      const settledAt = (replica.backAt() ?? now) + settlingMs;
      for (const book of books.values()) {
        book.settlingUntil = Math.max(book.settlingUntil, settledAt);
        book.widened.clear();
      }
      for (const [token, told] of pending) {
        pending.delete(token);
        background(tellSettled(bookOf(told.lease.bucket), aged(told, clock.monotonic()), undefined));
      }
      for (const book of books.values()) {
        for (const ticket of waitingOf(book)) enterAgain(book, ticket);
        wakeAgain(book);
      }
      tickAll();
    },

    onLoss: tickAll,
    catchUp: tickAll,
    placeAt,

    hear(text) {
      const message = readMessage(text);
      const book = bookOf(message.bucket);
      if (message.kind === 'closed') {
        book.closedUntil = clock.monotonic() + message.closedMs;
        listener.onClosed(message.bucket, message.closedMs);
        return;
      }
      // The first grant may come before the reply to the first admission: no loss, where none is known.
      if (book.born === null && book.lostAt === null && replica.lostAt() === null) book.born = message.born;
      // A message of a life that this replica has not seen yet: the tick finds out what that means.
      if (message.born !== book.born) return background(tick(book));
      if (!book.leads && book.nextAt !== null) book.nextAt = Math.max(book.nextAt, clock.monotonic());
      for (const told of message.grants) deliver(book, told, clockPair.now, clockPair.sentAt);
      wakeAgain(book);
    },

    start: scheduleTick,

    async close() {
      closed = true;
      cancelTick();
      for (const book of books.values()) {
        book.cancelWake?.();
        for (const lease of book.leases.values()) {
          background(
            settle(lease, lease.cancelHold === null ? { kind: 'unknown' } : { kind: 'dropped' }, null),
          );
        }
        for (const ticket of waitingOf(book)) background(cancel(book.key, ticket.admission.ticket));
      }
      while (open.size > 0 && link.isUp) await Promise.all(open);
    },
  };
}

/** The same told late: whatever had to be waited for has been. */
const atOnce = (settlement: Settlement): Settlement =>
  settlement.kind === 'throttled' ? { ...settlement, closeMs: 0, sleepMs: 0 } : settlement;

/** The same for a call that is not there any more. */
function withoutTicket(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}

/** What a ticket that is entered again has to cost. */
export const withCosts = (admission: Admission, settlement: Settlement): Admission =>
  settlement.kind === 'returned' && settlement.costs !== undefined
    ? { ...admission, costs: settlement.costs }
    : admission;

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
    lesson:
      lesson === null
        ? null
        : { ...lesson, sentAgoMs: lesson.sentAgoMs + lateMs, headAgoMs: lesson.headAgoMs + lateMs },
    at: now,
  };
}
