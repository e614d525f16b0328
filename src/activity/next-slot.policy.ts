/**
 * When the next call of a workspace could leave, from what is known of its ceiling and of the bucket it used last. Pure;
 * an expectation, never a promise: others may come first, and the upstream may say something new.
 */
import type { BucketSnapshot } from '../bucket.ts';

/**
 * Expected wait of a call that arrived now, milliseconds. `ceilingMs`: of the workspace's own ceiling. The bucket adds the
 * time until it opens, and until its meters of requests have room behind the calls that wait already. Tokens and cost are
 * left out: they depend on the call. `null` when nothing is known.
 */
export function nextSlotMs(ceilingMs: number | null, bucket: BucketSnapshot | null): number | null {
  if (bucket === null) return ceilingMs;
  let waitMs = Math.max(ceilingMs ?? 0, bucket.closedMs);
  for (const { meter, level, limit, windowMs } of bucket.meters) {
    if ((meter !== 'requests' && meter !== 'requests_day') || limit <= 0) continue;
    waitMs = Math.max(waitMs, ((level + bucket.waiting + 1 - limit) * windowMs) / limit);
  }
  return waitMs;
}
