/**
 * The limiter of an upstream, as its recorded responses show it: a level that drains lazily, no timers.
 *
 * Owns: one dimension's level and the arithmetic around it. Does not own: what is counted, what is answered.
 * Invariants: time is an argument, in milliseconds that never step back; draining never brings the level below 0; of two calls at
 * one instant the second one finds the units of the first one taken.
 *
 * `drain: used = max(0, used - elapsed * limit / window)`, `wait: max(0, (used + n - limit) * window / limit)`.
 * Checked against recorded responses (`test/fixtures/upstream-samples.yaml`: U01 to U09, U17).
 */

/** Differences below this are rounding of binary fractions, not time. */
const instantMs = 1e-3;
const unit = 1e-6;

/**
 * - `continuous`: drains without pause (OpenAI, Groq, Anthropic, commerce).
 * - `fixedWindow`: a counter that falls to zero at each whole multiple of the window (Azure tokens per minute).
 * - `sliced`: such a counter over a part of the window, with that part of the limit (Azure requests per minute).
 * - `quantum`: drains continuously, but only `limit * quantumMs / windowMs` may stand at once (documented sub-minute limits).
 */
export type BucketMode =
  | { readonly kind: 'continuous' }
  | { readonly kind: 'fixedWindow' }
  | { readonly kind: 'sliced'; readonly sliceMs: number }
  | { readonly kind: 'quantum'; readonly quantumMs: number };

export interface BucketOptions {
  /** Units per window; more than 0. */
  readonly limit: number;
  readonly windowMs: number;
  /** Default `continuous`. */
  readonly mode?: BucketMode;
  /** Units per second that an outside consumer takes without pause, as long as there is room. Default 0. */
  readonly outsidePerSecond?: number;
}

export class Bucket {
  #limit: number;
  #windowMs: number;
  #mode: BucketMode;
  #outsidePerMs: number;
  #used = 0;
  #at: number;

  constructor(options: BucketOptions, now: number) {
    this.#limit = options.limit;
    this.#windowMs = options.windowMs;
    this.#mode = options.mode ?? { kind: 'continuous' };
    this.#outsidePerMs = (options.outsidePerSecond ?? 0) / 1000;
    this.#at = now;
  }

  /** What the response states as the limit: of one slice when sliced, else the nominal one. */
  get limit(): number {
    return this.#mode.kind === 'sliced' ? this.#capacity() : this.#limit;
  }

  /** Length of the period `limit` is counted over, ms. */
  get periodMs(): number {
    return this.#mode.kind === 'sliced' ? this.#mode.sliceMs : this.#windowMs;
  }

  /** Level at `now`, fractional. */
  level(now: number): number {
    this.#drain(now);
    return this.#used;
  }

  /** Whole units left, never below 0. */
  remaining(now: number): number {
    return Math.max(0, Math.floor(this.limit - this.level(now) + unit));
  }

  /** ms until nothing is used any more, if nobody else calls. */
  fullInMs(now: number): number {
    this.#drain(now);
    if (this.#period() === null) return (this.#used * this.#windowMs) / this.#limit;
    return this.#used > unit ? this.#boundary() - now : 0;
  }

  /** ms until `n` more units fit, by what the limiter knows now; 0 when they fit. */
  waitMs(n: number, now: number): number {
    this.#drain(now);
    const room = Math.max(this.#capacity(), this.#mode.kind === 'quantum' ? n : 0);
    if (this.#period() === null) {
      const wait = ((this.#used + n - room) * this.#windowMs) / this.#limit;
      return wait < instantMs ? 0 : wait;
    }
    return this.#used + n <= room + unit ? 0 : this.#boundary() - now;
  }

  /** Charges `n` units whether or not they fit; negative gives back. */
  take(n: number, now: number): void {
    this.#drain(now);
    this.#used = Math.max(0, this.#used + n);
  }

  /** Charges at most what fits (refused calls and outside consumers never push the level over the limit). */
  takeUpTo(n: number, now: number): void {
    this.#drain(now);
    this.#used = Math.max(this.#used, Math.min(this.#capacity(), this.#used + n));
  }

  /**
   * Nobody finds room for `forMs`: an outside consumer has overdrawn the bucket, which goes on draining. @throws Error when the bucket
   * counts periods, because a counter that falls to zero cannot be closed beyond its period.
   */
  closeFor(forMs: number, now: number): void {
    if (this.#period() !== null) throw new Error('a bucket that counts periods cannot be closed');
    this.#drain(now);
    const whenFull = this.#capacity() - 1 + (forMs * this.#limit) / this.#windowMs;
    this.#used = Math.max(this.#used, whenFull);
  }

  /** Changes limit, window or outside consumer from `now` on; the level stays. */
  change(options: Partial<BucketOptions>, now: number): void {
    this.#drain(now);
    this.#limit = options.limit ?? this.#limit;
    this.#windowMs = options.windowMs ?? this.#windowMs;
    this.#mode = options.mode ?? this.#mode;
    if (options.outsidePerSecond !== undefined) this.#outsidePerMs = options.outsidePerSecond / 1000;
  }

  #capacity(): number {
    switch (this.#mode.kind) {
      case 'sliced':
        return Math.max(1, Math.floor((this.#limit * this.#mode.sliceMs) / this.#windowMs));
      case 'quantum':
        return (this.#limit * this.#mode.quantumMs) / this.#windowMs;
      case 'continuous':
      case 'fixedWindow':
        return this.#limit;
    }
  }

  /** Period after which the counter falls to zero; null when the bucket drains continuously. */
  #period(): number | null {
    const counts = this.#mode.kind === 'fixedWindow' || this.#mode.kind === 'sliced';
    return counts ? this.periodMs : null;
  }

  #boundary(): number {
    return (Math.floor(this.#at / this.periodMs) + 1) * this.periodMs;
  }

  #drain(now: number): void {
    const elapsed = now - this.#at;
    if (elapsed <= 0) return;
    const period = this.#period();
    if (period === null) this.#move(elapsed, this.#limit / this.#windowMs);
    else {
      const start = Math.floor(now / period) * period;
      if (start > this.#at) this.#used = 0;
      this.#move(now - Math.max(start, this.#at), 0);
    }
    this.#at = now;
  }

  /** The outside consumer is refused like everybody else, so it fills the bucket but never overfills it. */
  #move(elapsedMs: number, drainPerMs: number): void {
    const change = (this.#outsidePerMs - drainPerMs) * elapsedMs;
    const ceiling = change > 0 ? Math.max(this.#used, this.#capacity()) : Infinity;
    this.#used = Math.min(ceiling, Math.max(0, this.#used + change));
  }
}
