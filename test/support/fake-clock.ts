/**
 * Virtual time. Owns: the order of events (time, then the order of asking) and letting promises settle between two of them, so that
 * equal runs have equal histories. Does not own: chance.
 */
import { setImmediate } from 'node:timers';
import type { CancelTimer, Clock } from '../../src/clock.ts';

interface Event {
  readonly at: number;
  readonly sequence: number;
  run: (() => void) | null;
}

export class FakeClock implements Clock {
  readonly #events: Event[] = [];
  #time = 0;
  #sequence = 0;
  #timers = 0;
  #halted = false;

  now(): number {
    return Date.UTC(2026, 0, 1) + this.#time;
  }

  monotonic(): number {
    return this.#time;
  }

  /** As Node's timers: whole milliseconds, at least one, never early. */
  after(delayMs: number, run: () => void): CancelTimer {
    this.#timers += 1;
    const event = this.#insert(this.#time + Math.max(1, Math.ceil(delayMs)), () => {
      this.#timers -= 1;
      run();
    });
    return () => {
      if (event.run !== null) this.#timers -= 1;
      event.run = null;
    };
  }

  outside(at: number, run: () => void): CancelTimer {
    const event = this.#insert(at, run);
    return () => {
      event.run = null;
    };
  }

  /** A packet reaches the process. */
  arrives(at: number, run: () => void): void {
    this.outside(at, run);
  }

  /** Timers the process has set and neither cancelled nor seen ring. */
  get timers(): number {
    return this.#timers;
  }

  halt(): void {
    this.#halted = true;
  }

  /**
   * Runs until nothing is left, until somebody halts it, or until `limitMs`. `after` each instant's events, once their promises have settled,
   * is called with the time. `further` is asked for another limit when there is nothing to do before this one; `null` = the run is over.
   * True when nothing is left.
   */
  run(
    limitMs: number,
    after: (now: number) => void = () => {},
    further: () => number | null = () => null,
  ): Promise<boolean> {
    return new Promise((resolve, reject) => {
      let limit: number | null = limitMs;
      let isOver = false;
      let instants = 1;
      let hasRun = false;
      const end = (isEmpty: boolean): void => {
        isOver = true;
        resolve(isEmpty);
      };
      const step = (): void => {
        if (hasRun) after(this.#time);
        if (hasRun && this.#halted) return end(false);
        for (; limit !== null; limit = further()) {
          const event = this.#next(limit);
          if (event === undefined) continue;
          this.#time = event.at;
          const { run } = event;
          event.run = null;
          hasRun = true;
          return run?.();
        }
        end(this.#events.length === 0);
      };
      const onImmediate = (isLast: boolean): void => {
        if (isOver) return;
        try {
          step();
        } catch (failure) {
          isOver = true;
          reject(failure);
        }
        if (isLast && !isOver) ask();
      };
      // Node lets all promises settle between two of these callbacks, and turns its event loop once for many of them.
      const ask = (): void => {
        for (let left = instants; left > 0; left -= 1) setImmediate(onImmediate, left === 1);
        instants = Math.min(64, 2 * instants);
      };
      ask();
    });
  }

  /** The event that is due next, if it is by `limitMs`. */
  #next(limitMs: number): Event | undefined {
    for (;;) {
      const event = this.#events.at(-1);
      if (event === undefined || (event.run !== null && event.at > limitMs)) return undefined;
      this.#events.pop();
      if (event.run !== null) return event;
    }
  }

  #insert(at: number, run: () => void): Event {
    const event: Event = { at: Math.max(at, this.#time), sequence: ++this.#sequence, run };
    let [from, to] = [0, this.#events.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      const other = this.#events[middle];
      if (other !== undefined && before(event, other)) from = middle + 1;
      else to = middle;
    }
    this.#events.splice(from, 0, event);
    return event;
  }
}

const before = (a: Event, b: Event): boolean => a.at < b.at || (a.at === b.at && a.sequence < b.sequence);
