/**
 * Calls of one lane are written to the upstream in the order of their grants. A grant on a connection that is open
 * would overtake an earlier one whose connection is still being made; connections are made at once, but what is
 * written waits until the one before has been.
 *
 * Owns: that order, per lane and process. Refuses to own: whose turn it is (the scheduler). Bound: a connection that
 * cannot be made holds its followers back for at most `longestHoldMs`.
 */
import type { Clock } from '../clock.ts';

/** A follower waits this long for a predecessor that is not written, milliseconds. */
const longestHoldMs = 1_000;

/** One sending's place in the order. */
export interface Turn {
  /** Resolves when this one may be written; `null` = now. */
  readonly before: Promise<void> | null;
  /** It was written, or never will be. Repeating it does nothing. */
  readonly written: () => void;
}

interface Pending {
  readonly done: Promise<void>;
}

export class SendOrder {
  readonly #clock: Clock;
  readonly #last = new Map<string, Pending>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes the next place in the lane. */
  enter(lane: string): Turn {
    const before = this.#last.get(lane) ?? null;
    const { promise, resolve } = Promise.withResolvers<void>();
    const pending: Pending = { done: promise };
    this.#last.set(lane, pending);
    return {
      before: before === null ? null : this.#bounded(before.done),
      written: () => {
        if (this.#last.get(lane) === pending) this.#last.delete(lane);
        resolve();
      },
    };
  }

  #bounded(done: Promise<void>): Promise<void> {
    return new Promise((resolve) => {
      const cancel = this.#clock.after(longestHoldMs, resolve);
      void done.then(() => {
        cancel();
        resolve();
      });
    });
  }
}
