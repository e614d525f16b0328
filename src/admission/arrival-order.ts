/**
 * Makes the arrivals of this process distinct. Calls whose bodies were complete within one step of the clock may have the same
 * arrival; they get increasing arrivals in the order in which they enter admission. An exception is a call that enters late because
 * its body took long: its arrival lies before that of a call already in admission, and stays as it is.
 */

/** Between two arrivals; more than the smallest difference between two positions (`sequencePerMs`). Milliseconds. */
const stepMs = 0.02;

export class ArrivalOrder {
  #latest: { readonly at: number; readonly given: number } | null = null;

  /** The arrival with which a call that was received at `at` is admitted; both in monotonic milliseconds. */
  next(at: number): number {
    const latest = this.#latest;
    if (latest !== null && at < latest.at) return at;
    const given = latest === null ? at : Math.max(at, latest.given + stepMs);
    this.#latest = { at, given };
    return given;
  }
}
