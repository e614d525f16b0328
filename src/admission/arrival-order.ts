/**
 * Makes the arrivals of this process distinct: calls that were read together after a pause of the event loop, or within one
 * step of the clock, have the same arrival, and get positions in the order in which they came to admission. Late ones are the
 * exception: a call whose body came late, and which arrived before a call that is already in admission, keeps its arrival.
 */

/** More than the smallest difference between two positions (`sequencePerMs`). Milliseconds. */
const stepMs = 0.02;

export class ArrivalOrder {
  #latest: { readonly at: number; readonly given: number } | null = null;

  /** The arrival that a call received at `at` is admitted with; both in monotonic milliseconds. */
  next(at: number): number {
    const latest = this.#latest;
    if (latest !== null && at < latest.at) return at;
    const given = latest === null ? at : Math.max(at, latest.given + stepMs);
    this.#latest = { at, given };
    return given;
  }
}
