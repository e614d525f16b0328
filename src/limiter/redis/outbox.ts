/**
 * Events of one replica for one bucket, on their way to be sent together: while one batch is under way the next one gathers
 * here.
 *
 * Owns: the order of events. What ends or renews something goes before what begins; arriving calls of different lanes go in
 * rotation, those of one lane stay in order. Bounds: a batch has at most `maxBatch` events. Does not own: sending.
 */
import type { BucketEvent, EventReply } from '../policy/bucket-events.ts';
import type { LaneKey } from '../limiter.ts';
import type { Unavailable } from '../../redis/health.ts';
import type { BucketReply } from './protocol/reply-codec.ts';

/** What became of an event: its reply, with what the batch's reply says of the bucket. */
export interface AppliedEvent<R> {
  readonly kind: 'applied';
  readonly reply: R;
  readonly bucket: BucketReply;
  /** Monotonic milliseconds at which the attempt that was answered was sent. */
  readonly sentAt: number;
  readonly attempts: number;
  /** Resolves when what `bucket` says is known to the session. */
  readonly whenRead: Promise<void>;
}

export type EventOutcome<R> =
  | AppliedEvent<R>
  /** Redis is unavailable, or its reply could not be read; it may have applied the event, or may apply it yet. */
  | Unavailable;

/** An event on its way. */
export interface Outgoing {
  event: BucketEvent;
  /** Nobody waits for what it does. */
  readonly isDeferrable: boolean;
  /** The lane of an arriving call; `null` = the event is of anything else, or goes before all others. */
  arrivingLane: LaneKey | null;
  readonly resolve: (asked: EventOutcome<EventReply>) => void;
  readonly reject: (failure: unknown) => void;
}

/** Events of one batch at most: their run holds up every other client of Redis for a millisecond or two. */
export const maxBatch = 32;

export class Outbox {
  #first: Outgoing[] = [];
  /** Admissions of arriving calls, by lane; lanes in the order of their rotation. */
  readonly #arriving = new Map<LaneKey, Outgoing[]>();

  get isEmpty(): boolean {
    return this.#first.length === 0 && this.#arriving.size === 0;
  }

  /** Somebody waits for what one of the events does. */
  get isUrgent(): boolean {
    return this.#arriving.size > 0 || this.#first.some(({ isDeferrable }) => !isDeferrable);
  }

  add(event: Outgoing): void {
    const { arrivingLane } = event;
    if (arrivingLane === null) {
      this.#first.push(event);
      return;
    }
    const line = this.#arriving.get(arrivingLane);
    if (line === undefined) this.#arriving.set(arrivingLane, [event]);
    else line.push(event);
  }

  /** Puts back events that were taken for a batch but not applied; they go before all others. */
  putBack(events: readonly Outgoing[]): void {
    for (const event of events) event.arrivingLane = null;
    this.#first = [...events, ...this.#first];
  }

  /** Changes the events that are not taken yet. */
  revise(by: (event: BucketEvent) => BucketEvent): void {
    for (const outgoing of [...this.#first, ...[...this.#arriving.values()].flat()])
      outgoing.event = by(outgoing.event);
  }

  /** Takes what goes together in one command: arriving calls come last. */
  take(): Outgoing[] {
    const batch = this.#first.splice(0, maxBatch);
    while (batch.length < maxBatch) {
      const next = this.#arriving.entries().next();
      if (next.done === true) break;
      const [lane, line] = next.value;
      const one = line.shift();
      this.#arriving.delete(lane);
      if (line.length > 0) this.#arriving.set(lane, line);
      if (one !== undefined) batch.push(one);
    }
    return batch;
  }
}
