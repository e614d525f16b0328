/**
 * Time that goes on as fast as the work of its timers is done: hours of waiting take as long as the decisions in them.
 *
 * Owns: the order of timers (by time, then as they were set), and that every promise settles between two of them, so that equal runs
 * are equal. Does not own: anything outside, which a run waits for as little as it waits for the time.
 */
import type { CancelTimer, Clock } from '../../src/clock.ts';

interface Timer {
  readonly at: number;
  readonly sequence: number;
  /** `null` = cancelled. */
  run: (() => void) | null;
}

/**
 * Every time is a whole multiple of this, milliseconds: a power of two, so that it stays exact beside a time of day, whose fractions
 * are coarse. A wait that is lost when it is added to the time would be over again and again, at the same instant.
 */
const grainMs = 2 ** -10;
/** After so many timers the rest of the process has a turn. */
const timersPerTurn = 500;

export class VirtualClock implements Clock {
  /** A binary heap, the next timer first. */
  readonly #heap: Timer[] = [];
  readonly #startsAt: number;
  #time = 0;
  #sequence = 0;

  /** @param startsAt wall-clock time at its beginning, milliseconds since the Unix epoch */
  constructor(startsAt: number) {
    this.#startsAt = startsAt;
  }

  now(): number {
    return this.#startsAt + this.#time;
  }

  /** Milliseconds since its beginning. */
  monotonic(): number {
    return this.#time;
  }

  /** As Node's timers: whole milliseconds, at least one, never early. */
  after(delayMs: number, run: () => void): CancelTimer {
    return this.at(this.#time + Math.max(1, Math.ceil(delayMs)), run);
  }

  /** Something outside happens at this time (milliseconds since the beginning), or now where that is over. */
  at(time: number, run: () => void): CancelTimer {
    const at = Math.max(this.#time, Math.ceil(time / grainMs) * grainMs);
    const timer: Timer = { at, sequence: (this.#sequence += 1), run };
    this.#push(timer);
    return () => {
      timer.run = null;
    };
  }

  /** Lets time go on until `isOver`, or until no timer is left. Rejects with what a timer throws. */
  run(isOver: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      let turn = 0;
      const step = (): void => {
        const timer = isOver() ? undefined : this.#next();
        if (timer === undefined) return resolve();
        this.#time = timer.at;
        try {
          timer.run?.();
        } catch (failure) {
          return reject(failure);
        }
        turn += 1;
        // Node begins with what was put off in this way only when all promises have settled.
        if (turn % timersPerTurn === 0) setImmediate(step);
        else queueMicrotask(() => process.nextTick(step));
      };
      step();
    });
  }

  #next(): Timer | undefined {
    for (let timer = this.#pop(); timer !== undefined; timer = this.#pop())
      if (timer.run !== null) return timer;
    return undefined;
  }

  #push(timer: Timer): void {
    const heap = this.#heap;
    let at = heap.length;
    while (at > 0) {
      const above = (at - 1) >> 1;
      const parent = heap[above];
      if (parent === undefined || !isBefore(timer, parent)) break;
      heap[at] = parent;
      at = above;
    }
    heap[at] = timer;
  }

  #pop(): Timer | undefined {
    const heap = this.#heap;
    const [first] = heap;
    const last = heap.pop();
    if (first === undefined || last === undefined || heap.length === 0) return first;
    let at = 0;
    for (;;) {
      const [left, right] = [heap[2 * at + 1], heap[2 * at + 2]];
      const isRight = left !== undefined && right !== undefined && isBefore(right, left);
      const child = isRight ? right : left;
      if (child === undefined || isBefore(last, child)) break;
      heap[at] = child;
      at = 2 * at + (isRight ? 2 : 1);
    }
    heap[at] = last;
    return first;
  }
}

const isBefore = (a: Timer, b: Timer): boolean => a.at < b.at || (a.at === b.at && a.sequence < b.sequence);
