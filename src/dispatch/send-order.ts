/**
 * Calls of one lane are written to the upstream in the order of their grants. A call on an open connection would otherwise
 * overtake an earlier call whose connection is still being made: connections are made at once, but a request is written only
 * behind the request before it.
 *
 * Owns: that order, per lane and process. Does not own: which call is next (the scheduler). Bound: a connection that
 * cannot be made holds the calls behind it back for at most `maxHoldMs`.
 */
import type { Clock } from '../clock.ts';

/** A follower waits this long for a predecessor that is not written, milliseconds. */
const maxHoldMs = 1_000;

/** An attempt in the order in which its lane's attempts are written. */
export interface OrderedSending {
  /** Resolves when this request may be written; `null` = now. */
  readonly before: Promise<void> | null;
  /**
   * The next request of the lane may be written behind this one: it is on its way to the connection (`write-batch.ts`), or will
   * never be written. A second report does nothing.
   */
  release(): void;
}

export class SendOrder {
  readonly #clock: Clock;
  readonly #last = new Map<string, QueuedSending>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Enters as the last of the lane. */
  enter(lane: string): OrderedSending {
    const ahead = this.#last.get(lane);
    const sending = new QueuedSending(
      () => this.#leave(lane, sending),
      ahead === undefined ? null : this.#until(ahead),
    );
    this.#last.set(lane, sending);
    return sending;
  }

  #leave(lane: string, sending: QueuedSending): void {
    if (this.#last.get(lane) === sending) this.#last.delete(lane);
  }

  #until(ahead: QueuedSending): Promise<void> {
    return new Promise((resolve) => {
      const cancel = this.#clock.after(maxHoldMs, resolve);
      ahead.releaseNext = () => {
        cancel();
        resolve();
      };
    });
  }
}

class QueuedSending implements OrderedSending {
  readonly before: Promise<void> | null;
  /** Lets the next sending of the lane be written; `null` = none waits. */
  releaseNext: (() => void) | null = null;
  #leave: (() => void) | null;

  constructor(leave: () => void, before: Promise<void> | null) {
    this.#leave = leave;
    this.before = before;
  }

  release(): void {
    this.#leave?.();
    this.#leave = null;
    this.releaseNext?.();
    this.releaseNext = null;
  }
}
