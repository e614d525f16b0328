/** A bucket as Redis has it, for whoever judges: as the scripts keep it there, or as a copy that follows the log. */
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { Effects } from '../../../src/limiter/policy/pump.policy.ts';

export interface StoredBucket {
  readonly key: string;
  /** `null`: nobody knows the bucket. */
  readonly bucket: Bucket | null;
  /** The latest time of the store's clock at which something happened to it. Milliseconds. */
  readonly seen: number;
  /** Of the last event. */
  readonly effects: Effects;
}
