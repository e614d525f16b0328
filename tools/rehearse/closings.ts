/**
 * When upstreams take no calls, as the recording has it: by bucket, in order. Time only goes on.
 *
 * Nobody hears when an upstream closes: the next call that is sent is refused. The call would have been refused as well if it had been sent
 * as soon as it arrived, unless one that was sent later than that was taken.
 */
import type { RecordedCall } from '../../src/recording/format.ts';

interface Closing {
  readonly from: number;
  readonly until: number;
}

/** Recorded times are rounded to this. Milliseconds. */
const grainMs = 0.1;

export class Closings {
  readonly #ofBuckets = new Map<string, Closing[]>();

  constructor(calls: readonly RecordedCall[]) {
    for (const [bucket, own] of Map.groupBy(calls, (call) => call.bucket)) {
      const refusals = own
        .flatMap(({ at, closings = [] }) =>
          closings.map(({ afterMs, forMs }) => ({ at, refusedAt: at + afterMs, forMs })),
        )
        .toSorted((one, other) => one.refusedAt - other.refusedAt);
      if (refusals.length === 0) continue;
      const takenAt = own
        .flatMap(({ at, waitedMs, serviceMs, outcome }) =>
          serviceMs === null || outcome === 'throttled' ? [] : [at + waitedMs],
        )
        .sort((one, other) => one - other);
      let taken = 0;
      const all = refusals.map(({ at, refusedAt, forMs }) => {
        while ((takenAt[taken] ?? Infinity) < refusedAt) taken += 1;
        const from = Math.max(at, (takenAt[taken - 1] ?? -Infinity) + grainMs);
        return { from: Math.min(from, refusedAt), until: refusedAt + forMs };
      });
      this.#ofBuckets.set(
        bucket,
        all.toSorted((one, other) => one.from - other.from),
      );
    }
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
