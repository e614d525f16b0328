/**
 * Arrivals of one process that differ by as much as a position can express. Calls that were read after a gap share one
 * arrival, and a clock may give the same time to many calls: their positions follow the order in which they came to
 * admission. A call that arrived earlier than the one before it, and whose body came late, keeps its arrival.
 */

/** More than the smallest difference between two positions (`sequencePerMs`). Milliseconds. */
const stepMs = 0.02;

export class ArrivalOrder {
  #latest: { readonly at: number; readonly given: number } | null = null;

  /** The arrival to admit a call with that arrived at this monotonic time, milliseconds. */
  next(at: number): number {
    const latest = this.#latest;
    if (latest !== null && at < latest.at) return at;
    const given = latest === null ? at : Math.max(at, latest.given + stepMs);
    this.#latest = { at, given };
    return given;
  }
}
