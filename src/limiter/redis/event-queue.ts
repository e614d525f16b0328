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
import { Outbox, type EventOutcome, type Outgoing } from './outbox.ts';
import { runApply } from './protocol/commands.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { readBatch, type BucketReply } from './protocol/reply-codec.ts';
import type { StoreClock } from './store-clock.ts';

export type EventOf<K extends EventKind> = Extract<BucketEvent, { kind: K }>;

/** How long a deferrable event waits for another one to go with. Milliseconds. */
export const deferMs = 2;

export interface EventOptions {
  /** Nobody waits for what the event does: it may be sent {@link deferMs} later. */
  readonly isDeferrable?: boolean;
  /** Lane of a call that Redis does not have yet: arrivingLanes wait while many commands are under way, and go by lanes in rotation. */
  readonly arrivingLane?: LaneKey | null;
}

/** Reads what replies say of the bucket. `sentAt`: of their command, monotonic milliseconds; `kinds`: of the events they answer. */
export interface ReplyReader {
  /** Called before any event of the batch gets its own reply. */
  prepare(bucket: BucketReply, sentAt: number, kinds: ReadonlySet<EventKind>): Promise<void>;
  read(bucket: BucketReply, sentAt: number, kinds: ReadonlySet<EventKind>): void;
}

export interface QueueParts {
  readonly bucket: BucketKey;
  readonly redis: RedisHealth;
  readonly clock: Clock;
  readonly replica: { readonly id: ReplicaId; readonly storeClock: StoreClock };
  readonly reader: ReplyReader;
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
   * Has the event applied. Resolves with its outcome when the session has read the reply, so that nobody acts on an event before
   * the bucket's state is known. Rejects only with what is a bug.
   */
  async send<K extends EventKind>(
    event: EventOf<K>,
    options?: EventOptions,
  ): Promise<EventOutcome<ReplyOf[K]>> {
    const outcome = await this.apply<K>(event, options);
    if (outcome.kind === 'applied') await outcome.whenRead;
    return outcome;
  }

  /**
   * The same, but resolves before the session reads the reply, for a sender that has to note something of the event by then: what
   * it does between `await` and its next wait, which is to be for `whenRead`, comes before the reading.
   */
  apply<K extends EventKind>(
    event: EventOf<K>,
    { arrivingLane = null, isDeferrable = false }: EventOptions = {},
  ): Promise<EventOutcome<ReplyOf[K]>> {
    return new Promise((resolve, reject) => {
      // The codec reads the reply of a kind where it wrote an event of this kind.
      const outgoing = { event, arrivingLane, isDeferrable, resolve, reject } as unknown as Outgoing;
      // Nothing is gathered while the queue is idle.
      if (this.#state.kind === 'idle' && !isDeferrable) return void this.#sendAll([outgoing]);
      this.#outbox.add(outgoing);
      if (!isDeferrable) this.flush();
      else if (this.#state.kind === 'idle') this.#defer();
    });
  }

  /** Sends what is deferred now. */
  flush(): void {
    if (this.#state.kind === 'sending' || this.#outbox.isEmpty) return;
    if (this.#state.kind === 'deferring') this.#state.cancel();
    void this.#sendAll(this.#outbox.take());
  }

  /** Changes the events that are not under way yet. */
  revise(by: (event: BucketEvent) => BucketEvent): void {
    this.#outbox.revise(by);
  }

  #defer(): void {
    this.#state = { kind: 'deferring', cancel: this.#parts.clock.after(deferMs, () => this.flush()) };
  }

  async #sendAll(first: readonly Outgoing[]): Promise<void> {
    this.#state = { kind: 'sending' };
    for (let batch = first; batch.length > 0; batch = this.#outbox.isUrgent ? this.#outbox.take() : []) {
      try {
        await this.#commit(batch);
      } catch (failure) {
        for (const { reject } of batch) reject(failure);
      }
    }
    this.#state = { kind: 'idle' };
    if (!this.#outbox.isEmpty) this.#defer();
  }

  async #commit(batch: readonly Outgoing[]): Promise<void> {
    const { bucket: key, redis, replica, clock, reader } = this.#parts;
    const events = batch.map(({ event }) => event);
    const call = applyCall({ bucket: key, replica: replica.id }, events);
    // Arriving calls come last: if the first event is that of one, all are.
    const lane = batch[0]?.arrivingLane ?? null;
    const reply = await redis.run(
      'apply',
      async (client) => readBatch(await runApply(client, call), events),
      lane === null ? {} : { lane },
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
    const kinds = new Set(done.map(({ event }) => event.kind));
    await reader.prepare(bucket, sentAt, kinds);
    const { promise: whenRead, resolve: haveRead, reject: fail } = Promise.withResolvers<void>();
    for (const [at, { resolve }] of done.entries()) {
      const own = replies[at];
      if (own !== undefined) resolve({ kind: 'applied', reply: own, bucket, sentAt, attempts, whenRead });
    }
    // Waiters go on in the order in which their promises are resolved: each sender has noted its event's reply behind this.
    await Promise.resolve();
    try {
      reader.read(bucket, sentAt, kinds);
      haveRead();
    } catch (failure) {
      whenRead.catch(() => {});
      fail(failure);
    }
  }
}
