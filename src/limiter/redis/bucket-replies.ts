/**
 * What Redis says of one bucket, in replies and in messages of other replicas.
 *
 * Owns: the one place that reads a reply (`read`), the one place that notices another life of the bucket's data
 * (`#noticeLife`), when the bucket is pumped next. Does not own: what becomes of single grants (`bucket-calls.ts`).
 */
import { recoveryGraceMs } from './bucket-view.ts';
import type { BucketParts } from './bucket-entry.ts';
import type { ReplyReader } from './event-queue.ts';
import type { EventKind } from '../policy/bucket-events.ts';
import { PumpTimer } from './pump-timer.ts';
import type { BucketReply } from './protocol/reply-codec.ts';
import type { ReplicaMessage } from './protocol/message-codec.ts';

export class BucketReplies implements ReplyReader {
  readonly #parts: BucketParts;
  readonly #pump: () => void;
  readonly #timer: PumpTimer;

  /** `pump`: asks Redis what may be granted now. */
  constructor(parts: BucketParts, pump: () => void) {
    this.#parts = parts;
    this.#pump = pump;
    this.#timer = new PumpTimer(parts.context.clock, pump);
  }

  /** No pump is asked for any more. */
  close(): void {
    this.#timer.close();
  }

  /** A message about this bucket: what another replica's events did for this one. */
  hear(message: ReplicaMessage): void {
    const { view, calls, context } = this.#parts;
    if (message.kind === 'closed') {
      view.closing.set(context.clock.monotonic() + message.closedMs);
      return context.listener.onClosed(message.bucket, message.closedMs);
    }
    const { createdAt, latest } = view;
    // A message of a life that this replica has not seen yet: the next reply finds out what that means.
    if (message.createdAt !== createdAt || latest === null) return this.#pump();
    this.#timer.noteLeaderPumped();
    for (const grant of message.grants) calls.receive(grant, latest);
    this.schedulePump();
  }

  /** Before a reply is read: is the bucket new because it expired, or because Redis lost it, alone or with everything else? */
  async prepare(bucket: BucketReply, sentAt: number, kinds: ReadonlySet<EventKind>): Promise<void> {
    const { view, context } = this.#parts;
    const { redis, replica } = context;
    view.usedAt = sentAt;
    if (kinds.has('admit') || concernsNoCall(kinds)) this.#forgetExpired(bucket.createdAt, sentAt);
    const { createdAt, now } = bucket;
    const isYoung = createdAt !== null && now - createdAt < recoveryGraceMs;
    const isLost = view.createdAt !== null && createdAt !== view.createdAt;
    const isNoted = view.losses !== replica.losses();
    if (isLost ? !isNoted : isYoung && view.createdAt === null)
      await redis.run('other', (client) => replica.beat(client));
  }

  /**
   * A bucket in which this replica had nothing has most likely expired, as every bucket does that nobody uses: it is a new
   * one. While it is closed it does not expire.
   */
  #forgetExpired(createdAt: number | null, sentAt: number): void {
    const { view, calls } = this.#parts;
    if (view.createdAt === null || createdAt === view.createdAt) return;
    if (view.closing.isAt(sentAt) || calls.held.wereInRedis(sentAt)) return;
    view.createdAt = null;
  }

  /** The one place that reads what a reply says of the bucket. A forecast alone says nothing of pumps. */
  read(bucket: BucketReply, sentAt: number, kinds: ReadonlySet<EventKind>): void {
    if (kinds.size === 1 && kinds.has('forecast')) return;
    const { view, calls, context } = this.#parts;
    const now = context.clock.monotonic();
    const isOvertaken = view.isOvertaken(bucket);
    this.#noticeLife(bucket, sentAt);
    const time = { now: bucket.now, sentAt };
    if (!isOvertaken) {
      if (view.closing.forgets(bucket.closedMs, now)) view.keepClosed();
      view.closing.note(bucket.closedMs, { sentAt, now });
      view.latest = time;
      const { nextInMs, isPumpLeader: isLeader } = bucket;
      this.#timer.note(nextInMs === null ? null : { at: now + nextInMs, isLeader });
    }
    for (const grant of bucket.grants) calls.receive(grant, time);
    this.schedulePump();
  }

  /** The one place that notices another life of the bucket's data: everything of the old one is gone. */
  #noticeLife({ createdAt, now }: BucketReply, sentAt: number): void {
    const { view, calls, context } = this.#parts;
    const before = view.createdAt;
    const isWithOthers = view.losses !== context.replica.losses();
    view.losses = context.replica.losses();
    if (createdAt === before) return;
    view.createdAt = createdAt;
    const isFirstSight = before === null && view.lostAt === null;
    const isYoung = createdAt !== null && now - createdAt < recoveryGraceMs;
    const isOfLoss = isYoung && context.replica.lostAt() !== null;
    if (isFirstSight && !isOfLoss && calls.held.leases.size === 0) return;
    if (before !== null || isFirstSight) {
      calls.lose();
      const isAlone = isFirstSight ? !isOfLoss : !isWithOthers;
      if (isAlone) view.lostAloneAt = view.lostAt;
    }
    if (createdAt !== null) view.holdUntil(sentAt + createdAt + recoveryGraceMs - now);
  }

  /** Sets the timer of the next pump by what is known now. */
  schedulePump(): void {
    const { calls, context } = this.#parts;
    if (context.redis.isUp) this.#timer.schedule(calls.held.countWaiting() > 0);
    else this.#timer.cancel();
  }
}

/** A reload and an operator also concern buckets in which this replica has nothing any more. */
const concernsNoCall = (kinds: ReadonlySet<EventKind>): boolean =>
  kinds.size === 1 && (kinds.has('reconfigure') || kinds.has('open'));
