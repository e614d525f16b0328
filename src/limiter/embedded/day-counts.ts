/**
 * Calls of a day by key, in this process's memory: a day begins with the first call of a key and lasts 24 hours, as with
 * rate-limiter-flexible's stock fixed window, as `redis/lua/consume.lua` does in Redis.
 *
 * Time is the clock's alone, so that a change of the system's time ends no day. (The library's own memory store reads the system's.)
 * Keys whose day is over are forgotten.
 */
import type { Clock } from '../../clock.ts';

export const dayMs = 86_400_000;

/** A day of a key as it stands now. */
export interface DayCount {
  readonly calls: number;
  readonly endsInMs: number;
  /** When it began: which day a call was counted in. */
  readonly since: number;
}

export class DayCounts {
  readonly #clock: Clock;
  readonly #days = new Map<string, { readonly since: number; calls: number }>();
  #sweptAt: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#sweptAt = clock.monotonic();
  }

  /** The day of the key; `null` = none has begun, or it is over. */
  get(key: string): DayCount | null {
    const now = this.#clock.monotonic();
    const day = this.#days.get(key);
    if (day === undefined || day.since + dayMs <= now) return null;
    return { calls: day.calls, endsInMs: day.since + dayMs - now, since: day.since };
  }

  /** Counts a call, with which a day begins where none lasts. */
  count(key: string): DayCount {
    const now = this.#clock.monotonic();
    this.#sweep(now);
    const before = this.get(key);
    const since = before?.since ?? now;
    const calls = (before?.calls ?? 0) + 1;
    this.#days.set(key, { since, calls });
    return { calls, endsInMs: since + dayMs - now, since };
  }

  /** Takes back a call that was counted in the day that began then; a day that is over stays as it was. */
  giveBack(key: string, since: number): void {
    const day = this.#days.get(key);
    if (day?.since === since && day.calls > 0) day.calls -= 1;
  }

  /** Once an hour, drops the days that are over. */
  #sweep(now: number): void {
    if (now < this.#sweptAt + dayMs / 24) return;
    this.#sweptAt = now;
    for (const [key, { since }] of this.#days) if (since + dayMs <= now) this.#days.delete(key);
  }
}
