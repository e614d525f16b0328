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

/** One sending's place in the order. */
export interface Turn {
  /** Resolves when this one may be written; `null` = now. */
  readonly before: Promise<void> | null;
  /** It was written, or never will be. Repeating it does nothing. */
  written(): void;
}

export class SendOrder {
  readonly #clock: Clock;
  readonly #last = new Map<string, PlaceInOrder>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes the next place in the lane. */
  enter(lane: string): Turn {
    const ahead = this.#last.get(lane);
    const place = new PlaceInOrder(
      () => this.#leave(lane, place),
      ahead === undefined ? null : this.#until(ahead),
    );
    this.#last.set(lane, place);
    return place;
  }

  #leave(lane: string, place: PlaceInOrder): void {
    if (this.#last.get(lane) === place) this.#last.delete(lane);
  }

  #until(ahead: PlaceInOrder): Promise<void> {
    return new Promise((resolve) => {
      const cancel = this.#clock.after(maxHoldMs, resolve);
      ahead.release = () => {
        cancel();
        resolve();
      };
    });
  }
}

class PlaceInOrder implements Turn {
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
