/** A bucket as its log has it, and what happened to it, for whoever judges. */
import type { Bucket, BucketEvent, EventReply } from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { Effects, Granted } from '../../../src/limiter/policy/pump.policy.ts';

/** Who asked, and the log's time. Milliseconds. */
export interface Asked {
  readonly replica: string;
  readonly clock: number;
}

/** What became of one event. */
export interface Done {
  /** `null` = time has gone on. */
  readonly event: BucketEvent | null;
  readonly reply: EventReply | null;
  readonly grants: readonly Granted[];
}

export interface StoredBucket {
  readonly key: string;
  /** `null`: nobody knows the bucket. */
  readonly bucket: Bucket | null;
  /** The latest time of the store's clock at which something happened to it. Milliseconds. */
  readonly seen: number;
  /** Of the last event. */
  readonly effects: Effects;
}
