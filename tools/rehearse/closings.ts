/** When upstreams take no calls, as the recording has it: by bucket, in order. Time only goes on. */
import type { RecordedCall } from '../../src/recording/format.ts';

interface Closing {
  readonly from: number;
  readonly until: number;
}

export class Closings {
  readonly #ofBuckets = new Map<string, Closing[]>();

  constructor(calls: readonly RecordedCall[]) {
    for (const { bucket, at, closings = [] } of calls)
      for (const { afterMs, forMs } of closings) {
        const all = this.#ofBuckets.get(bucket) ?? [];
        this.#ofBuckets.set(bucket, all);
        all.push({ from: at + afterMs, until: at + afterMs + forMs });
      }
    for (const all of this.#ofBuckets.values()) all.sort((one, other) => one.from - other.from);
  }

  /** For how long the bucket takes no call yet, milliseconds; 0 = it takes calls. */
  leftMs(bucket: string, now: number): number {
    const all = this.#ofBuckets.get(bucket);
    if (all === undefined) return 0;
    while (all[0] !== undefined && all[0].until <= now) all.shift();
    let until = now;
    for (const closing of all) {
      if (closing.from > until) break;
      until = Math.max(until, closing.until);
    }
    return until - now;
  }
}
