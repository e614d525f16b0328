/** The limits that hold calls to an upstream now, as a replica knows them: types that the gateway fills in. */
import type { BucketSnapshot, MeterSnapshot } from '../bucket.ts';
import type { BucketKey } from '../ids.ts';

/** One workspace's calls to one bucket, and what holds them beside the bucket. */
export interface LaneInForce {
  readonly workspaceId: string;
  readonly bucket: BucketKey;
  /** Calls of about the last hour, this replica; later ones weigh more. */
  readonly calls: number;
  readonly weight: number;
  readonly maxInFlight: number | null;
  /** The workspace's ceiling; `null` = none holds. */
  readonly perMinute: number | null;
  readonly perDay: number | null;
  /** Used shares of the ceiling by its latest call, 0 to 1. */
  readonly used: { readonly minute: number; readonly day: number };
}

export interface InForce {
  readonly lanes: readonly LaneInForce[];
  readonly buckets: readonly BucketSnapshot[];
  /** What the configuration says of a bucket that no call has used yet. */
  readonly stated: readonly Omit<MeterSnapshot, 'level'>[];
  readonly maxWaitMs: number;
  readonly maxQueued: number;
}
