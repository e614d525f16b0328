/**
 * Calls of one lane are written to the upstream in the order of their grants. A grant on a connection that is open
 * would overtake an earlier one whose connection is still being made; connections are made at once, but what is
 * written waits until the one before has been.
 *
 * Owns: that order, per lane and process. Refuses to own: whose turn it is (the scheduler). Bound: a connection that
 * cannot be made holds its followers back for at most `maxHoldMs`.
 */
import type { Clock } from '../clock.ts';

/** A follower waits this long for a predecessor that is not written, milliseconds. */
const maxHoldMs = 1_000;

/** One sending in the order of its lane. */
export interface Sending {
  /** Resolves when this one may be written; `null` = now. */
  readonly before: Promise<void> | null;
  /** It was written, or never will be. Repeating it does nothing. */
  written(): void;
}

export class SendOrder {
  readonly #clock: Clock;
  readonly #last = new Map<string, QueuedSending>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Enters as the last of the lane. */
  enter(lane: string): Sending {
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
      ahead.release = () => {
        cancel();
        resolve();
      };
    });
  }
}

class QueuedSending implements Sending {
  readonly before: Promise<void> | null;
  /** Lets the one behind it go; `null` = nobody waits. */
  release: (() => void) | null = null;
  #leave: (() => void) | null;

  constructor(leave: () => void, before: Promise<void> | null) {
    this.#leave = leave;
    this.before = before;
  }

  written(): void {
    this.#leave?.();
    this.#leave = null;
    this.release?.();
    this.release = null;
  }
}
