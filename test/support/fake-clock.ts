/**
 * Virtual time with two sides: the process under test, whose timers may ring late and whose event loop may stall, and
 * the world outside, which goes on at its own time.
 *
 * Owns: the order of events (time, then the order of asking) and letting promises settle between two of them, so that
 * equal runs have equal histories. Does not own: chance; lateness is asked of its owner.
 */
import { setImmediate } from 'node:timers';
import type { CancelTimer, Clock } from '../../src/clock.ts';

/** How many instants one turn of Node's event loop takes at most. */
const maxInstantsAtOnce = 64;

interface Event {
  at: number;
  sequence: number;
  readonly inProcess: boolean;
  run: (() => void) | null;
}

export class FakeClock implements Clock {
  /** The next one last. */
  readonly #events: Event[] = [];
  readonly #epochMs: number;
  readonly #lateMs: () => number;
  #time = 0;
  #sequence = 0;
  #stalledUntil = 0;
  #timers = 0;
  #halted = false;

  /** @param lateMs how late the next timer of the process rings, milliseconds. */
  constructor(lateMs: () => number = () => 0, epochMs = Date.UTC(2026, 0, 1)) {
    this.#lateMs = lateMs;
    this.#epochMs = epochMs;
  }

  now(): number {
    return this.#epochMs + this.#time;
  }

  monotonic(): number {
    return this.#time;
  }

  /** As Node's timers: whole milliseconds, at least one, never early. */
  after(delayMs: number, run: () => void): CancelTimer {
    const event = this.#push(this.#time + Math.max(1, Math.ceil(delayMs)) + this.#lateMs(), true, () => {
      this.#timers -= 1;
      run();
    });
    this.#timers += 1;
    return () => {
      if (event.run === null) return;
      event.run = null;
      this.#timers -= 1;
    };
  }

  /** Something happens outside at its own time, whatever the process does. */
  outside(at: number, run: () => void): CancelTimer {
    const event = this.#push(Math.max(at, this.#time), false, run);
    return () => {
      event.run = null;
    };
  }

  /** Something reaches the process (a packet): at its time, or when its event loop turns again. */
  arrives(at: number, run: () => void): void {
    this.#push(Math.max(at, this.#time), true, run);
  }

  /** The event loop of the process does not turn for this long. */
  stall(ms: number): void {
    this.#stalledUntil = Math.max(this.#stalledUntil, this.#time + ms);
  }

  get stalledUntil(): number {
    return this.#stalledUntil;
  }

  /** Timers the process has set and neither cancelled nor seen ring. */
  get timers(): number {
    return this.#timers;
  }

  /** The run ends after this instant. */
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
        instants = Math.min(maxInstantsAtOnce, 2 * instants);
      };
      ask();
    });
  }

  /** The event that is due next, if it is by `limitMs`. */
  #next(limitMs: number): Event | undefined {
    for (;;) {
      const event = this.#events.at(-1);
      if (event === undefined) return undefined;
      const isStalled = event.inProcess && event.at < this.#stalledUntil;
      if (event.run !== null && !isStalled && event.at > limitMs) return undefined;
      this.#events.pop();
      if (event.run === null) continue;
      if (!isStalled) return event;
      event.at = this.#stalledUntil;
      event.sequence = ++this.#sequence;
      this.#insert(event);
    }
  }

  #push(at: number, inProcess: boolean, run: () => void): Event {
    const event: Event = { at, sequence: ++this.#sequence, inProcess, run };
    this.#insert(event);
    return event;
  }

  #insert(event: Event): void {
    let [from, to] = [0, this.#events.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      const other = this.#events[middle];
      if (other !== undefined && before(event, other)) from = middle + 1;
      else to = middle;
    }
    this.#events.splice(from, 0, event);
  }
}

const before = (a: Event, b: Event): boolean => a.at < b.at || (a.at === b.at && a.sequence < b.sequence);
