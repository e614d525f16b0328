/**
 * From an event to the reply of Redis, and the work that goes on behind an answer that has been given. Group commit: per
 * bucket at most one batch of events is under way; what comes meanwhile goes together in the next one. An event that
 * comes alone is sent at once.
 *
 * Owns: Redis' clock against ours as of the latest reply, the list of what is under way. Refuses to own: repetition and
 * whether Redis is there (`redis-link.ts`), what a reply means (`redis-grants.ts`).
 */
import type { Clock } from '../clock.ts';
import type { Telemetry } from '../telemetry/events.ts';
import type { BucketEvent, EventKind, ReplyOf, StoredAdmission } from './bucket-events.ts';
import { orderUnit, sequencePerMs } from './bucket-state.policy.ts';
import { applyCall } from './event-codec.ts';
import type { TimedLesson } from './lessons.policy.ts';
import type { Admission, LaneKey, Lesson } from './limiter.ts';
import type { Applied, Asked, Outgoing } from './outbox.ts';
import { isInRedis, type BucketBook, type KeptTicket } from './redis-book.ts';
import { runApply } from './redis-commands.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import { readBatch, type BatchReply, type BucketReply } from './reply-codec.ts';
import type { Replica } from './replica.ts';

/** After a loss every replica has noticed within a tick and entered its tickets again. Milliseconds. */
export const settlingMs = 1_300;

type EventOf<K extends EventKind> = Extract<BucketEvent, { kind: K }>;

/** An admission of a ticket that has its position already. */
export type Positioned = Admission & { readonly position: { readonly kind: 'kept'; readonly order: number } };

export interface Scripts {
  /**
   * Has the event applied, and takes in what the reply tells of the bucket. `take` is called before that, in the turn in
   * which the reply is read. `newcomer`: the lane of a call that Redis has not heard of; newcomers wait while much is on
   * its way to Redis, lanes in turn. Rejects only with what is a bug.
   */
  ask<K extends EventKind>(
    book: BucketBook,
    event: EventOf<K>,
    options?: { readonly newcomer?: LaneKey; readonly take?: (applied: Applied<ReplyOf[K]>) => void },
  ): Promise<Asked<ReplyOf[K]>>;
  /** Order of a call that arrived at this monotonic time, among those of all replicas. */
  orderAt(urgency: number, at: number): number;
  /** With its arrival on Redis' clock. */
  stored(admission: Admission): StoredAdmission;
  /** With the times of an answer that is read now on Redis' clock: what is told late is as old as it was. */
  timed(lesson: Lesson): TimedLesson;
  /** With the position that Redis told, or that of its arrival. */
  positioned(ticket: KeptTicket): Positioned;
  /** Redis' time in the latest reply, and when it was asked for (monotonic); zeros before the first one. */
  latest(): { readonly now: number; readonly sentAt: number };
  /** Goes on without being waited for; a failure is logged as a bug. */
  background(work: Promise<unknown>): void;
  /** Resolves when nothing is under way, or Redis is away. */
  drained(): Promise<void>;
}

export function createScripts({
  link,
  clock,
  telemetry,
  replica,
  absorb,
}: {
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly replica: Pick<Replica, 'id' | 'beat' | 'storeClock'>;
  /** Takes what the reply to a batch that was sent at `sentAt` tells of the bucket. */
  readonly absorb: (book: BucketBook, reply: BucketReply, sentAt: number) => void;
}): Scripts {
  const open = new Set<Promise<unknown>>();
  const { storeClock } = replica;
  let latest = { now: 0, sentAt: 0 };

  /** Is the bucket new to this replica and young, was it there before? */
  const askForLosses = async (book: BucketBook, { born, now }: BucketReply): Promise<void> => {
    if (book.born !== null || born === null || now - born >= settlingMs) return;
    try {
      await link.run('other', (client) => replica.beat(client));
    } catch (failure) {
      if (!(failure instanceof RedisAway)) throw failure;
    }
  };

  /**
   * A bucket in which nothing of this replica was has most likely expired, as any that nobody uses: it is a new one. While
   * it is closed it does not expire.
   */
  const forgetExpired = (book: BucketBook, born: number | null, sentAt: number): void => {
    const isAnother = born !== book.born && book.born !== null;
    if (isAnother && book.closedUntil <= sentAt && !isInRedis(book, sentAt)) book.born = null;
  };

  /** Before the first reply this process' own wall clock has to do. */
  const timeAt = (at: number): number => storeClock.at(at) ?? clock.now() + at - clock.monotonic();

  const orderAt = (urgency: number, at: number): number =>
    urgency * orderUnit + Math.floor(timeAt(at) * sequencePerMs);

  const send = async (
    book: BucketBook,
    batch: readonly Outgoing[],
    newcomer: LaneKey | null,
  ): Promise<{ readonly reply: BatchReply; readonly sentAt: number; readonly attempts: number } | null> => {
    const events = batch.map(({ event }) => event);
    const call = applyCall({ bucket: book.key, replica: replica.id }, events);
    let sentAt = 0;
    let attempts = 0;
    try {
      const reply = await link.run(
        'apply',
        async (client) => {
          sentAt = clock.monotonic();
          return readBatch(await runApply(client, call), events);
        },
        {
          onAttempts: (count) => (attempts = count),
          ...(newcomer === null ? {} : { lane: newcomer }),
        },
      );
      return { reply, sentAt, attempts };
    } catch (failure) {
      if (failure instanceof RedisAway) return null;
      throw failure;
    }
  };

  const commit = async (
    book: BucketBook,
    batch: readonly Outgoing[],
    newcomer: LaneKey | null,
  ): Promise<void> => {
    const sent = await send(book, batch, newcomer);
    if (sent === null) {
      for (const { resolve } of batch) resolve({ kind: 'unavailable' });
      return;
    }
    const { sentAt, attempts } = sent;
    const { bucket, replies } = sent.reply;
    storeClock.note(bucket.now, sentAt, clock.monotonic());
    latest = { now: bucket.now, sentAt };
    book.usedAt = sentAt;
    const done = batch.slice(0, replies.length);
    book.outbox.putBack(batch.slice(replies.length));
    if (done.some(({ event }) => event.kind === 'admit')) forgetExpired(book, bucket.born, sentAt);
    await askForLosses(book, bucket);
    const applied = done.flatMap((outgoing, at) => {
      const reply = replies[at];
      return reply === undefined
        ? []
        : [{ outgoing, result: { kind: 'applied', reply, bucket, sentAt, attempts } as const }];
    });
    for (const { outgoing, result } of applied) outgoing.take(result);
    // A forecast alone tells nothing of pumps.
    if (done.some(({ event }) => event.kind !== 'forecast')) absorb(book, bucket, sentAt);
    for (const { outgoing, result } of applied) outgoing.resolve(result);
  };

  const flush = async (book: BucketBook): Promise<void> => {
    const { outbox } = book;
    outbox.isBusy = true;
    while (!outbox.isEmpty) {
      const { batch, newcomer } = outbox.take();
      try {
        await commit(book, batch, newcomer);
      } catch (failure) {
        for (const { reject } of batch) reject(failure);
      }
    }
    outbox.isBusy = false;
  };

  return {
    ask<K extends EventKind>(
      book: BucketBook,
      event: EventOf<K>,
      {
        newcomer,
        take,
      }: { readonly newcomer?: LaneKey; readonly take?: (applied: Applied<ReplyOf[K]>) => void } = {},
    ) {
      return new Promise<Asked<ReplyOf[K]>>((resolve, reject) => {
        // The codec reads the reply of a kind where it wrote an event of this kind.
        const outgoing = { event, take: take ?? ((): void => {}), resolve, reject } as unknown as Outgoing;
        book.outbox.add(outgoing, newcomer ?? null);
        if (!book.outbox.isBusy) void flush(book);
      });
    },

    orderAt,

    stored: (admission) => {
      const { position } = admission;
      if (position.kind === 'kept') return { ...admission, position };
      return { ...admission, position: { kind: 'arrival', at: storeClock.at(position.at) } };
    },

    timed({ feedback, sentAgoMs, headAgoMs }) {
      const now = clock.monotonic();
      return { feedback, sentAt: timeAt(now - sentAgoMs), headAt: timeAt(now - headAgoMs) };
    },

    positioned: ({ admission, order, arrivedAt }) => ({
      ...admission,
      position: { kind: 'kept', order: order ?? orderAt(admission.urgency, arrivedAt) },
    }),

    latest: () => latest,

    background(work) {
      const tracked = work
        .catch((failure: unknown) => telemetry.log.bug('a limiter operation failed', failure))
        .finally(() => open.delete(tracked));
      open.add(tracked);
    },

    async drained() {
      while (open.size > 0 && link.isUp) await Promise.all(open);
    },
  };
}
