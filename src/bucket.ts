/** A bucket as it is shown: words that limiter, telemetry and activity share. Types only. */
import type { MeterName } from './call.ts';
import type { BucketKey } from './ids.ts';

export interface MeterSnapshot {
  readonly meter: MeterName;
  readonly limit: number;
  readonly level: number;
  readonly windowMs: number;
  /** How its upstream counts; absent: the level drains continuously. */
  readonly counts?: 'rolling' | 'fixed';
  /** A response has stated the limit; else it is written in the configuration, or a default. */
  readonly isReported?: boolean;
}

/** State of one bucket, for gauges and activity. */
export interface BucketSnapshot {
  readonly bucket: BucketKey;
  readonly closedMs: number;
  /** Calls of this replica. */
  readonly waiting: number;
  readonly inFlight: number;
  /** Positions that are kept for clients of refused calls, on all replicas. */
  readonly reserved: number;
  /** Calls in flight that it takes over all workspaces, as configured or as refusals taught; `null` = any number. */
  readonly maxInFlightTotal: number | null;
  readonly meters: readonly MeterSnapshot[];
}
