/**
 * How long a bucket that nobody uses is remembered. Clients name buckets (each model is one, each credential that they
 * bring themselves): what somebody made up must not be kept as long as what was learned.
 *
 * Both stores ask here: the embedded one forgets by it, in Redis it is the expiry of the keys (`save.lua`). Pure.
 */
import type { Bucket } from './bucket-state.policy.ts';
import { drainRate } from './meter.policy.ts';
import { logMemoryMs } from './window-log.policy.ts';

/** What was learned is kept this long after the last use; longer than any call waits. Milliseconds. */
export const bucketMemoryMs = 3_600_000;
/** A bucket whose answers taught nothing is kept this long, milliseconds: the next burst need not probe. */
export const blankMemoryMs = 60_000;
/** A bucket without any answer holds nothing that a new one would not; it is kept this long for replicas that may still refer to it. */
export const unansweredMemoryMs = 5_000;

/** Milliseconds after `now`, its last use, at which the bucket may be forgotten. What is closed is kept in addition. */
export function memoryMs(bucket: Bucket, now: number): number {
  let memory = memoryOfLevels(bucket, now);
  for (const meter of bucket.meters.values()) memory = Math.max(memory, logMemoryMs(meter, now));
  return memory;
}

function memoryOfLevels(bucket: Bucket, now: number): number {
  if (bucket.waiting > 0 || bucket.leases.size > 0 || bucket.closedAt !== null) return bucketMemoryMs;
  let longest = bucket.opened ? blankMemoryMs : unansweredMemoryMs;
  for (const meter of bucket.meters.values()) {
    if (meter.reported !== null || meter.heardAt !== null) return bucketMemoryMs;
    // A meter that has drained equals a new one. A meter without a known limit holds no call back, whatever its level.
    if (meter.limit !== null) longest = Math.max(longest, meter.at + meter.level / drainRate(meter) - now);
  }
  return Math.min(longest, bucketMemoryMs);
}
