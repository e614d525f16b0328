/**
 * Virtual time with two sides: the process under test, whose timers may ring late and whose event loop may stall, and
 * the world outside, which goes on at its own time.
 *
 * Owns: the order of events (time, then the order of asking) and letting promises settle between two of them, so that
 * equal runs have equal histories. Refuses to own: chance; lateness is asked of its owner.
 */
import { setImmediate } from 'node:timers/promises';
import type { CancelTimer, Clock } from '../../src/clock.ts';

interface Event {
  at: number;
  sequence: number;
  readonly inProcess: boolean;
  run: (() => void) | null;
}

export class FakeClock implements Clock {
  readonly #heap: Event[] = [];
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
   * is called with the time. True when nothing is left.
   */
  async run(limitMs: number, after: (now: number) => void = () => {}): Promise<boolean> {
    await setImmediate();
    for (;;) {
      const event = this.#pop();
      if (event === undefined) return true;
      if (event.run === null) continue;
      if (event.inProcess && event.at < this.#stalledUntil) {
        event.at = this.#stalledUntil;
        event.sequence = ++this.#sequence;
        this.#insert(event);
        continue;
      }
      if (event.at > limitMs) {
        this.#insert(event);
        return false;
      }
      this.#time = event.at;
      const { run } = event;
      event.run = null;
      run();
      await setImmediate();
      after(this.#time);
      if (this.#halted) return false;
    }
  }

  #push(at: number, inProcess: boolean, run: () => void): Event {
    const event: Event = { at, sequence: ++this.#sequence, inProcess, run };
    this.#insert(event);
    return event;
  }

  #insert(event: Event): void {
    const heap = this.#heap;
    let at = heap.push(event) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = heap[parent];
      if (above === undefined || !before(event, above)) break;
      heap[at] = above;
      at = parent;
    }
    heap[at] = event;
  }

  #pop(): Event | undefined {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop();
    if (top === undefined || last === undefined || heap.length === 0) return top;
    let at = 0;
    for (;;) {
      const left = heap[2 * at + 1];
      const right = heap[2 * at + 2];
      const child = right !== undefined && left !== undefined && before(right, left) ? right : left;
      if (child === undefined || !before(child, last)) break;
      heap[at] = child;
      at = child === left ? 2 * at + 1 : 2 * at + 2;
    }
    heap[at] = last;
    return top;
  }
}

const before = (a: Event, b: Event): boolean => a.at < b.at || (a.at === b.at && a.sequence < b.sequence);
