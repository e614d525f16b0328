/**
 * One timer for all the limits of an exchange.
 *
 * Owns: arming and re-arming. Refuses to own: which limit applies (the owner answers `due`). Keeps: a limit that moves
 * away costs nothing; the timer is only touched when it must ring earlier, because most exchanges end before any of
 * their limits and would otherwise pay for four timers.
 */
import type { CancelTimer, Clock } from '../clock.ts';

export interface AlarmOwner {
  /** Called at or after the time set. Returns the next time, monotonic milliseconds, or `null` when there is none. */
  due(now: number): number | null;
}

export class Alarm {
  readonly #clock: Clock;
  readonly #owner: AlarmOwner;
  #ringsAt = Infinity;
  #cancel: CancelTimer | null = null;

  constructor(clock: Clock, owner: AlarmOwner) {
    this.#clock = clock;
    this.#owner = owner;
  }

  /** Rings at `at` at the latest. A ring that is already set for an earlier time asks the owner again then. */
  notLaterThan(at: number, now: number): void {
    if (at >= this.#ringsAt) return;
    this.#cancel?.();
    this.#ringsAt = at;
    this.#cancel = this.#clock.after(at - now, () => this.#ring());
  }

  stop(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#ringsAt = Infinity;
  }

  #ring(): void {
    this.#cancel = null;
    this.#ringsAt = Infinity;
    const now = this.#clock.monotonic();
    const next = this.#owner.due(now);
    if (next !== null) this.notLaterThan(next, now);
  }
}
