/** One replica's process on virtual time: its clocks, which count from its own start, its late timers, its pauses (SIGSTOP) and its death. */
import type { CancelTimer, Clock } from '../../../src/clock.ts';
import type { FakeClock } from '../../support/fake-clock.ts';

export class Process implements Clock {
  readonly name: string;
  /** Virtual time; `Infinity` = it lives. */
  killedAt = Infinity;
  /** Virtual time until which it does not run; 0 = it never was stopped. */
  pausedUntil = 0;
  timers = 0;
  readonly #clock: FakeClock;
  readonly #lateMs: () => number;
  readonly #uptimeMs: number;
  #stepMs = 0;

  /** @param uptimeMs what its monotonic clock shows at the beginning of the history. Milliseconds. */
  constructor(name: string, clock: FakeClock, parts: { lateMs: () => number; uptimeMs: number }) {
    this.name = name;
    this.#clock = clock;
    this.#lateMs = parts.lateMs;
    this.#uptimeMs = parts.uptimeMs;
  }

  get alive(): boolean {
    return this.killedAt === Infinity;
  }

  now(): number {
    return this.#clock.now() + this.#stepMs;
  }

  /** The process's own. Everybody else counts from the beginning of the history. */
  monotonic(): number {
    return this.#clock.monotonic() + this.#uptimeMs;
  }

  after(delayMs: number, run: () => void): CancelTimer {
    let isSet = true;
    const end = (): boolean => {
      if (!isSet) return false;
      isSet = false;
      this.timers -= 1;
      return true;
    };
    this.timers += 1;
    const at = this.#clock.monotonic() + Math.max(1, Math.ceil(delayMs)) + this.#lateMs();
    const cancel = this.#whenRunning(at, () => {
      if (end()) run();
    });
    return () => {
      if (end()) cancel();
    };
  }

  /** Something reaches the process: at its time, or when its event loop turns again. */
  arrives(at: number, run: () => void): void {
    this.#whenRunning(at, run);
  }

  /** Something happens outside, whatever the process does. */
  outside(at: number, run: () => void): CancelTimer {
    return this.#clock.outside(at, run);
  }

  pause(ms: number): void {
    this.pausedUntil = Math.max(this.pausedUntil, this.#clock.monotonic() + ms);
  }

  step(ms: number): void {
    this.#stepMs += ms;
  }

  kill(): void {
    this.killedAt = Math.min(this.killedAt, this.#clock.monotonic());
  }

  #whenRunning(at: number, run: () => void): CancelTimer {
    let cancel = this.#clock.outside(at, () => {
      if (!this.alive) return;
      if (this.#clock.monotonic() >= this.pausedUntil) return run();
      cancel = this.#whenRunning(this.pausedUntil, run);
    });
    return () => cancel();
  }
}
