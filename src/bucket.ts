/** A bucket as it is shown: words that limiter, telemetry and activity share. Types only. */
import type { MeterName } from './call.ts';
import type { BucketKey } from './ids.ts';

export interface MeterSnapshot {
  readonly meter: MeterName;
  readonly limit: number;
  readonly level: number;
  readonly windowMs: number;
}

/** State of one bucket, for gauges and activity. */
export interface BucketSnapshot {
  readonly bucket: BucketKey;
  readonly closedMs: number;
  /** Calls of this replica. */
  readonly waiting: number;
  readonly inFlight: number;
  readonly meters: readonly MeterSnapshot[];
}
