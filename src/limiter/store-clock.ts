/**
 * Redis' clock as this process sees it: what time it is there at a given monotonic time here. Calls of all replicas are
 * ordered by it, whichever replica is slow to ask.
 *
 * Owns: the estimate. A reply that names Redis' time was made between the sending of its command and its arrival, so the
 * estimate from the fastest round trip is wrong by half of that at most (the rule of NTP, RFC 5905 §10). Refuses to own:
 * this process' clock.
 */

/** A better sample than this old is looked for; clocks drift apart by less than a millisecond meanwhile. Milliseconds. */
const maxSampleAgeMs = 30_000;
/** Two samples that differ by more than both round trips and this come of a clock that was set. Milliseconds. */
const stepMs = 5;

interface Sample {
  /** Redis' time less this process' monotonic time, milliseconds. */
  readonly offsetMs: number;
  readonly roundTripMs: number;
  /** Monotonic milliseconds. */
  readonly at: number;
}

export class StoreClock {
  #best: Sample | null = null;

  /** A reply named Redis' time `storeNow`; its command was sent at `sentAt` and it was read at `readAt` (monotonic). */
  note(storeNow: number, sentAt: number, readAt: number): void {
    const sample = {
      offsetMs: storeNow - (sentAt + readAt) / 2,
      roundTripMs: readAt - sentAt,
      at: readAt,
    };
    const best = this.#best;
    const isOld = best !== null && readAt - best.at > maxSampleAgeMs;
    if (best === null || isOld || sample.roundTripMs <= best.roundTripMs || disagree(best, sample)) {
      this.#best = sample;
    }
  }

  /** Redis' time at this monotonic time, milliseconds; `null` before the first reply. */
  at(monotonic: number): number | null {
    return this.#best === null ? null : monotonic + this.#best.offsetMs;
  }
}

const disagree = (one: Sample, other: Sample): boolean =>
  Math.abs(one.offsetMs - other.offsetMs) > (one.roundTripMs + other.roundTripMs) / 2 + stepMs;
