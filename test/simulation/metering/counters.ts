/**
 * How upstreams count: three counters, as plain as they can be. They are the truth of an experiment, and no line of the
 * product is in them. Time is an argument, milliseconds of the upstream's own clock.
 */
export interface Counter {
  readonly limit: number;
  /** Used units, fractional where the counter drains. */
  used(now: number): number;
  /** Milliseconds until one more fits; 0 = now. */
  waitMs(now: number): number;
  /** What such an upstream calls the reset: until the bucket is full again, the window ends, the oldest call is forgotten. */
  resetMs(now: number): number;
  take(now: number): void;
}

const dust = 1e-6;

/** Drains without pause: `limit` units in a window. */
export class Leaky implements Counter {
  readonly limit: number;
  readonly #perMs: number;
  #used = 0;
  #at = 0;

  constructor(limit: number, windowMs: number) {
    this.limit = limit;
    this.#perMs = limit / windowMs;
  }

  used(now: number): number {
    this.#used = Math.max(0, this.#used - Math.max(0, now - this.#at) * this.#perMs);
    this.#at = Math.max(this.#at, now);
    return this.#used;
  }

  waitMs(now: number): number {
    const over = this.used(now) + 1 - this.limit;
    return over <= dust ? 0 : over / this.#perMs;
  }

  resetMs(now: number): number {
    return this.used(now) / this.#perMs;
  }

  take(now: number): void {
    this.#used = this.used(now) + 1;
  }
}

/** Falls to nothing at the end of a window, which is aligned to the clock (with a phase) or begins with its first call. */
export class Fixed implements Counter {
  readonly limit: number;
  readonly #windowMs: number;
  readonly #phaseMs: number | null;
  #used = 0;
  #endsAt = 0;

  constructor(limit: number, windowMs: number, phaseMs: number | null) {
    this.limit = limit;
    this.#windowMs = windowMs;
    this.#phaseMs = phaseMs;
  }

  used(now: number): number {
    if (now >= this.#endsAt) {
      this.#used = 0;
      const since = this.#phaseMs === null ? 0 : (now + this.#windowMs - this.#phaseMs) % this.#windowMs;
      this.#endsAt = now + this.#windowMs - since;
    }
    return this.#used;
  }

  waitMs(now: number): number {
    return this.used(now) + 1 <= this.limit ? 0 : this.#endsAt - now;
  }

  resetMs(now: number): number {
    this.used(now);
    return this.#endsAt - now;
  }

  take(now: number): void {
    this.used(now);
    this.#used += 1;
  }
}

/** Counts what was taken in the last window, whenever one looks. */
export class Rolling implements Counter {
  readonly limit: number;
  readonly #windowMs: number;
  readonly #taken: number[] = [];

  constructor(limit: number, windowMs: number) {
    this.limit = limit;
    this.#windowMs = windowMs;
  }

  used(now: number): number {
    while ((this.#taken[0] ?? Infinity) + this.#windowMs <= now) this.#taken.shift();
    return this.#taken.length;
  }

  waitMs(now: number): number {
    return this.used(now) + 1 <= this.limit ? 0 : this.resetMs(now);
  }

  resetMs(now: number): number {
    this.used(now);
    return (this.#taken[0] ?? now - this.#windowMs) + this.#windowMs - now;
  }

  take(now: number): void {
    this.used(now);
    this.#taken.push(now);
  }
}
