/**
 * Redis' clock as this process sees it: what time it is there at a given monotonic time here. Calls of all replicas are
 * ordered by it, whichever replica is slow to ask.
 *
 * Owns: the estimate. A reply that names Redis' time was made between the sending of its command and its arrival, so the
 * estimate from the fastest round trip is wrong by half of that at most (the rule of NTP, RFC 5905 §10). Does not own:
 * this process' clock. Keeps: a better estimate never turns the order of this process' calls around.
 */

/** How fast two clocks may drift apart: a sample is worth less with each second. Milliseconds per millisecond. */
const drift = 1e-4;
/** Two samples that differ by more than half of both round trips and this come of a clock that was set. Milliseconds. */
const setByMs = 5;
/** More than the smallest difference between two positions (`sequencePerMs`). Milliseconds. */
const stepMs = 0.02;

interface Sample {
  /** Redis' time less this process' monotonic time, milliseconds. */
  readonly offsetMs: number;
  readonly roundTripMs: number;
  /** Monotonic milliseconds. */
  readonly at: number;
}

export class StoreClock {
  #best: Sample | null = null;
  /** The latest monotonic time that was asked for, and the time given for it. */
  #latest: { readonly monotonic: number; readonly reading: number } | null = null;

  /** A reply named Redis' time `storeNow`; its command was sent at `sentAt` and it was read at `readAt` (monotonic). */
  note(storeNow: number, sentAt: number, readAt: number): void {
    const sample = {
      offsetMs: storeNow - (sentAt + readAt) / 2,
      roundTripMs: readAt - sentAt,
      at: readAt,
    };
    const best = this.#best;
    if (best === null) this.#best = sample;
    else if (wasSet(best, sample)) {
      this.#best = sample;
      this.#latest = null;
    } else if (sample.roundTripMs <= roundTripAt(best, readAt)) this.#best = sample;
  }

  /**
   * Redis' time at this monotonic time, milliseconds; `null` before the first reply. A later time than one that was asked
   * for before is given as later, too.
   */
  at(monotonic: number): number | null {
    if (this.#best === null) return null;
    const latest = this.#latest;
    const estimate = monotonic + this.#best.offsetMs;
    if (latest !== null && monotonic < latest.monotonic) return Math.min(estimate, latest.reading - stepMs);
    if (latest?.monotonic === monotonic) return latest.reading;
    const reading = latest === null ? estimate : Math.max(estimate, latest.reading + stepMs);
    this.#latest = { monotonic, reading };
    return reading;
  }
}

/** What the round trip of a sample is worth later. */
const roundTripAt = ({ roundTripMs, at }: Sample, now: number): number => roundTripMs + (now - at) * drift;

function wasSet(best: Sample, sample: Sample): boolean {
  const errorMs = (roundTripAt(best, sample.at) + sample.roundTripMs) / 2;
  return Math.abs(best.offsetMs - sample.offsetMs) > errorMs + setByMs;
}
