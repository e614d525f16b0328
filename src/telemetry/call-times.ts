/**
 * The times of one call: when its steps were, how long it was held, how long the upstream had it. Owns numbers only; reporting
 * them is the task of `observed-call.ts`. Every `now` is monotonic, everything is in milliseconds.
 *
 * Overhead = (route decided − received) + (head answered − admission began) − held − upstream. Reading the request body
 * lies between the two and is not counted.
 */
export class CallTimes {
  readonly receivedAt: number;
  /** How long the call was held in its lane, all waits together. */
  heldMs = 0;
  /** From sending to the head (or to the break), all attempts together. */
  upstreamMs = 0;
  #routedAt: number;
  #admittingAt: number | null = null;
  #queuedAt: number | null = null;
  #sentAt: number | null = null;
  #headAt: number | null = null;

  constructor(receivedAt: number) {
    this.receivedAt = receivedAt;
    this.#routedAt = receivedAt;
  }

  /** True when admission has begun. */
  get admitting(): boolean {
    return this.#admittingAt !== null;
  }

  /** Whether the head of the attempt in flight has yet to come. */
  get sending(): boolean {
    return this.#sentAt !== null;
  }

  get waiting(): boolean {
    return this.#queuedAt !== null;
  }

  routed(now: number): void {
    this.#routedAt = now;
  }

  admission(now: number): void {
    this.#admittingAt = now;
  }

  queued(now: number): void {
    this.#queuedAt = now;
  }

  /** Ends the wait, if there is one. */
  left(now: number): void {
    if (this.#queuedAt === null) return;
    this.heldMs += now - this.#queuedAt;
    this.#queuedAt = null;
  }

  sent(now: number): void {
    this.#sentAt = now;
  }

  /** Ends the time of the attempt in flight: how long it was, or `null` when it has ended already. */
  head(now: number): number | null {
    if (this.#sentAt === null) return null;
    const ms = now - this.#sentAt;
    this.#sentAt = null;
    this.upstreamMs += ms;
    this.#headAt = now;
    return ms;
  }

  /** Our own share of the time until the latest head, or until `now` when there was none. */
  overhead(now: number): number {
    const before = this.#routedAt - this.receivedAt;
    if (this.#admittingAt === null) return Math.max(0, before);
    const until = this.#headAt ?? now;
    return Math.max(0, before + until - this.#admittingAt - this.heldMs - this.upstreamMs);
  }
}
