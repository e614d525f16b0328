/**
 * Arrivals of one process that positions can tell apart. What was read after a gap has one arrival for all of it, and a clock
 * may give the same time to many calls: they are in the order in which they came to admission. A call whose arrival is
 * earlier than that of the one before (its body took long to admit it) keeps its arrival.
 */

/** More than the least that positions tell apart (`sequencePerMs`). Milliseconds. */
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
