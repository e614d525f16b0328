/**
 * The log's time as this replica knows it. The reply to an own append names a time between its sending and its arrival, so an estimate
 * is wrong by half of the round trip at most (the rule of NTP, RFC 5905 §10); the one from the fastest round trip is kept.
 */

/** How fast two clocks may drift apart: an estimate is worth less with each second. Milliseconds per millisecond. */
const drift = 1e-4;

interface Estimate {
  /** The log's time less this process' monotonic time, milliseconds. */
  readonly offsetMs: number;
  readonly roundTripMs: number;
  /** Monotonic milliseconds. */
  readonly at: number;
}

export class LogClock {
  #estimate: Estimate | null = null;
  /** The latest time that an entry had, milliseconds. */
  #latest = 0;

  /** An own entry of the time `at` was sent at `sentAt`, and its reply read at `readAt` (monotonic). */
  noteOwn(at: number, sentAt: number, readAt: number): void {
    const made = { offsetMs: at - (sentAt + readAt) / 2, roundTripMs: readAt - sentAt, at: readAt };
    const known = this.#estimate;
    if (known === null || made.roundTripMs <= errorMs(known, readAt) || contradicts(known, made))
      this.#estimate = made;
    this.#latest = Math.max(this.#latest, at);
  }

  /** There is an entry of this time, heard at `heardAt` (monotonic). */
  noteHeard(at: number, heardAt: number): void {
    this.#latest = Math.max(this.#latest, at);
    const known = this.#estimate;
    if (known !== null && heardAt + known.offsetMs < at)
      this.#estimate = { ...known, offsetMs: at - heardAt, at: heardAt };
  }

  /** Another log: nothing is known of its time. */
  reset(): void {
    this.#estimate = null;
    this.#latest = 0;
  }

  /** False before the first own entry: then the time stands still between entries. */
  get isKnown(): boolean {
    return this.#estimate !== null;
  }

  /**
   * The log's time at this monotonic time, milliseconds. Never less than an entry's; less than was given before where the log's time
   * has gone on by less than this process'.
   */
  at(monotonic: number): number {
    return this.#estimate === null
      ? this.#latest
      : Math.max(this.#latest, monotonic + this.#estimate.offsetMs);
  }
}

/** What the round trip of an estimate is worth later. */
const errorMs = ({ roundTripMs, at }: Estimate, now: number): number => roundTripMs + (now - at) * drift;

/** The log's time went on otherwise than this process': the server's clock was set, or one of the two stood still. */
const contradicts = (known: Estimate, made: Estimate): boolean =>
  Math.abs(known.offsetMs - made.offsetMs) > (errorMs(known, made.at) + made.roundTripMs) / 2;
