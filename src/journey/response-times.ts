/**
 * How long upstreams take to begin their responses, per bucket: a call that is held until just before its client hangs up would be
 * answered too late. Owns: the estimate. Does not own: what is made of it (`preferences.policy.ts`).
 */
import { LRUCache } from 'lru-cache';

const maxBuckets = 10_000;
/** The weights of a new time, as TCP estimates round trips (RFC 6298 §2): an eighth in the mean, a quarter in the deviation. */
const weights = { mean: 1 / 8, deviation: 1 / 4 };

export class ResponseTimes {
  readonly #times = new LRUCache<string, { meanMs: number; deviationMs: number }>({ max: maxBuckets });

  /** Notes that a response's head arrived `ms` milliseconds after its call was sent. */
  note(bucket: string, ms: number): void {
    const known = this.#times.get(bucket);
    if (known === undefined) {
      this.#times.set(bucket, { meanMs: ms, deviationMs: ms / 2 });
      return;
    }
    known.deviationMs += weights.deviation * (Math.abs(ms - known.meanMs) - known.deviationMs);
    known.meanMs += weights.mean * (ms - known.meanMs);
  }

  /** The time within which most responses of the bucket begin, milliseconds; 0 while none is known. */
  usualMs(bucket: string): number {
    const known = this.#times.get(bucket);
    return known === undefined ? 0 : known.meanMs + 2 * known.deviationMs;
  }
}
