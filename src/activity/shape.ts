/** What has to be known for `/activity` to answer. What it answers is described by `schema/activity.schema.json`. */
import type { BucketSnapshot, MeterSnapshot } from '../bucket.ts';
import type { BucketKey } from '../ids.ts';
import type { CallerNow } from '../limiter/limiter.ts';
import type { ObservedBreaker, PressureSource } from '../telemetry/events.ts';

/** Callers of a workspace that are shown at most. */
export const maxShownCallers = 20;

/** What is left under one ceiling. */
export interface CeilingState {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until more slots are free; 0 when there are some. Shown as whole ones, rounded up. */
  readonly resetMs: number;
}

/** Ceilings of a workspace on an upstream, as they are now. */
export interface CeilingsNow {
  readonly perMinute: CeilingState | null;
  readonly perDay: CeilingState | null;
  /** Expected wait of a call that arrived now, milliseconds; `null` = not known. */
  readonly nextSlotMs: number | null;
  /** Calls in flight that its bucket takes over all workspaces, as configured or as refusals taught; `null` = any number. */
  readonly maxInFlightTotal: number | null;
  /** Positions that are kept for clients of refused calls of this workspace, which will come back. */
  readonly reserved: number;
  /** Callers of this workspace that have calls now, those with most of them first, {@link maxShownCallers} at most; all replicas. */
  readonly callers: readonly CallerNow[];
  /** `null`: the upstream takes calls with this workspace's credential. */
  readonly refusing: ObservedBreaker | null;
}

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

/** What of the gateway is shown. Asked only when somebody looks. */
export interface GatewayState extends Omit<PressureSource, 'headrooms'> {
  ceilings(workspaceId: string, upstream: string): Promise<CeilingsNow>;
  /** The limits that hold calls to an upstream, as this replica's calls met them. */
  inForce(upstream: string): Pick<InForce, 'lanes' | 'buckets'>;
}
