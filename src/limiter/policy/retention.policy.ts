/**
 * How long an unused bucket is kept. Clients can create buckets: each model name is one, and each credential that a client brings
 * itself. A bucket with an invented name must not be kept as long as one about which something was learned.
 *
 * Pure.
 */
import { allWaiting, type Bucket } from './bucket-state.policy.ts';
import { drainRate } from './meter.policy.ts';
import { logMemoryMs } from './window-log.policy.ts';

/** How long a bucket with a learned level or limit is kept after its last use: longer than any call waits. Milliseconds. */
export const bucketMemoryMs = 3_600_000;
/** How long a bucket is kept whose responses taught nothing: the next burst need not probe again. Milliseconds. */
export const blankMemoryMs = 60_000;
/** How long a bucket without any response is kept: it equals a new one, but replicas may still refer to it. Milliseconds. */
export const unansweredMemoryMs = 5_000;

/** Milliseconds after `now`, the bucket's last use, at which it may be forgotten. The time for which it is closed comes on top. */
export function memoryMs(bucket: Bucket, now: number): number {
  let memory = memoryOfLevels(bucket, now);
  for (const meter of bucket.meters.values()) memory = Math.max(memory, logMemoryMs(meter, now));
  return memory;
}

function memoryOfLevels(bucket: Bucket, now: number): number {
  if (allWaiting(bucket) > 0 || bucket.leases.size > 0 || bucket.closedAt !== null) return bucketMemoryMs;
  let longest = bucket.opened ? blankMemoryMs : unansweredMemoryMs;
  for (const meter of bucket.meters.values()) {
    if (meter.reported !== null || meter.heardAt !== null) return bucketMemoryMs;
    // A drained meter equals a new one, so the bucket is kept until then. Without a known limit a meter holds no call back.
    if (meter.limit !== null) longest = Math.max(longest, meter.at + meter.level / drainRate(meter) - now);
  }
  return Math.min(longest, bucketMemoryMs);
}
