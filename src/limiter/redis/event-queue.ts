/**
 * From an event to the reply of Redis, for one bucket. Group commit: at most one batch of events is under way; what comes
 * meanwhile goes together in the next one. An event that comes alone is sent at once, unless nobody waits for what it does: such
 * a deferrable event is held for {@link deferMs}, so that it goes with the next call's admission.
 *
 * Owns: sending, in which order a reply is taken apart. Does not own: the order of events (`outbox.ts`), repetition and
 * whether Redis is available (`health.ts`), what a reply means (`bucket-replies.ts`).
 */
import type { CancelTimer, Clock } from '../../clock.ts';
import type { BucketEvent, EventKind, ReplyOf } from '../policy/bucket-events.ts';
import type { ReplicaId } from '../../ids.ts';
import { applyCall } from './protocol/event-codec.ts';
import type { BucketKey, LaneKey } from '../limiter.ts';
import { Outbox, type AppliedEvent, type EventOutcome, type Batch, type Outgoing } from './outbox.ts';
import { runApply } from './protocol/commands.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { readBatch, type BucketReply } from './protocol/reply-codec.ts';
import type { StoreClock } from './store-clock.ts';

export type EventOf<K extends EventKind> = Extract<BucketEvent, { kind: K }>;

/** How long a deferrable event waits for another one to go with. Milliseconds. */
export const deferMs = 2;

export interface EventOptions<K extends EventKind> {
  /** Nobody waits for what the event does: it may be sent {@link deferMs} later. */
  readonly isDeferrable?: boolean;
  /** Lane of an arriving call: arriving calls wait while many commands are under way, and go by lanes in rotation. */
  readonly arrivingLane?: LaneKey;
  /** Called with the event's reply before the session reads what the reply says of the bucket. */
  readonly first?: (applied: AppliedEvent<ReplyOf[K]>) => void;
}

/** What a reply says of the bucket, and which events it answers. */
export interface BucketNews {
  readonly bucket: BucketReply;
  /** Monotonic milliseconds. */
  readonly sentAt: number;
  readonly kinds: ReadonlySet<EventKind>;
}

export interface QueueParts {
  readonly bucket: BucketKey;
  readonly redis: RedisHealth;
  readonly clock: Clock;
  readonly replica: { readonly id: ReplicaId; readonly storeClock: StoreClock };
  /** Called before any event of the batch reads its own reply. */
  readonly prepare: (news: BucketNews) => Promise<void>;
  /** Reads what the reply says of the bucket. */
  readonly apply: (news: BucketNews) => void;
}

type QueueState =
  | { readonly kind: 'idle' }
  /** There are deferrable events only. */
  | { readonly kind: 'deferring'; readonly cancel: CancelTimer }
  | { readonly kind: 'sending' };

export class EventQueue {
  readonly #parts: QueueParts;
  readonly #outbox = new Outbox();
  #state: QueueState = { kind: 'idle' };

  constructor(parts: QueueParts) {
    this.#parts = parts;
  }

  /**
   * Has the event applied. Resolves after `first` and after the session has read the reply, so that nobody acts on an event
   * before the bucket's state is known. Rejects only with what is a bug.
   */
  send<K extends EventKind>(
    event: EventOf<K>,
    options: EventOptions<K> = {},
  ): Promise<EventOutcome<ReplyOf[K]>> {
    return new Promise((resolve, reject) => {
      const { first = (): void => {}, arrivingLane = null, isDeferrable = false } = options;
      // The codec reads the reply of a kind where it wrote an event of this kind.
      const outgoing = { event, take: first, isDeferrable, resolve, reject } as unknown as Outgoing;
      this.#outbox.add(outgoing, arrivingLane);
      if (!isDeferrable) this.flush();
      else if (this.#state.kind === 'idle') this.#defer();
    });
  }

  /** Sends what is deferred now. */
  flush(): void {
    if (this.#state.kind === 'sending' || this.#outbox.isEmpty) return;
    if (this.#state.kind === 'deferring') this.#state.cancel();
    void this.#sendAll();
  }

  /** Changes the events that are not under way yet. */
  revise(by: (event: BucketEvent) => BucketEvent): void {
    this.#outbox.revise(by);
  }

  #defer(): void {
    this.#state = { kind: 'deferring', cancel: this.#parts.clock.after(deferMs, () => this.flush()) };
  }

  async #sendAll(): Promise<void> {
    this.#state = { kind: 'sending' };
    do {
      const batch = this.#outbox.take();
      try {
        await this.#commit(batch);
      } catch (failure) {
        for (const { reject } of batch.events) reject(failure);
      }
    } while (this.#outbox.isUrgent);
    this.#state = { kind: 'idle' };
    if (!this.#outbox.isEmpty) this.#defer();
  }

  async #commit({ events: batch, arrivingLane }: Batch): Promise<void> {
    const { bucket: key, redis, replica, clock, prepare, apply } = this.#parts;
    const events = batch.map(({ event }) => event);
    const call = applyCall({ bucket: key, replica: replica.id }, events);
    const reply = await redis.run(
      'apply',
      async (client) => readBatch(await runApply(client, call), events),
      arrivingLane === null ? {} : { lane: arrivingLane },
    );
    if (reply.kind === 'unavailable') {
      for (const { resolve } of batch) resolve(reply);
      return;
    }
    const { sentAt, attempts } = reply;
    const { bucket, replies } = reply.value;
    replica.storeClock.note(bucket.now, sentAt, clock.monotonic());
    const done = batch.slice(0, replies.length);
    this.#outbox.putBack(batch.slice(replies.length));
    const news = { bucket, sentAt, kinds: new Set(done.map(({ event }) => event.kind)) };
    await prepare(news);
    const applied = done.flatMap((outgoing, at) => {
      const own = replies[at];
      return own === undefined
        ? []
        : [{ outgoing, result: { kind: 'applied', reply: own, bucket, sentAt, attempts } as const }];
    });
    for (const { outgoing, result } of applied) outgoing.take(result);
    apply(news);
    for (const { outgoing, result } of applied) outgoing.resolve(result);
  }
}
