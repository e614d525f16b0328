/**
 * The shape of what `/activity` answers (described by `schema/activity.schema.json`), and what has to be known
 * to answer.
 */
import type { BucketSnapshot, MeterSnapshot } from '../bucket.ts';
import type { BucketKey } from '../ids.ts';
import type { CallerNow } from '../limiter/limiter.ts';
import type { ObservedBreaker, PressureSource } from '../telemetry/events.ts';
import type { Answer, ShortAnswer, UpstreamState } from './answer.policy.ts';
import type { Headroom, Rehearsed } from './headroom.policy.ts';
import type { Cell } from './cell.policy.ts';
import type { LaneCalls } from './recorder.ts';

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

export type RecentPressure = Cell['recent'];

/** A workspace on an upstream: `waiting` and `inFlight` are its calls there, on all replicas. */
export interface LaneActivity extends LaneCalls, Omit<CeilingsNow, 'perMinute' | 'perDay'> {
  readonly upstream: string;
  readonly ceilings: Pick<CeilingsNow, 'perMinute' | 'perDay'>;
  readonly recent: RecentPressure;
  readonly headroom: Headroom | null;
  /** Whether this workspace can send more, in words. */
  readonly answer: ShortAnswer;
}

/** What was asked, and when. */
interface Asked {
  readonly generatedAt: string;
  readonly windowSeconds: number;
  readonly replicas: number;
}

export interface WorkspaceActivity extends Asked {
  readonly workspace: string;
  readonly upstreams: readonly LaneActivity[];
}

/**
 * Of all workspaces: those with a label of their own, the one with most calls first, and `other`: all calls that are not
 * in those rows. Without state and headroom: `other`, and workspaces that have called other replicas only. The rows of an upstream
 * together are all calls to it.
 */
export interface AllActivity extends AllUpstreams, Asked {
  readonly workspaces: readonly {
    readonly workspace: string;
    readonly upstreams: readonly (
      LaneActivity | { readonly upstream: string; readonly recent: RecentPressure }
    )[];
  }[];
}

export interface UpstreamActivity extends UpstreamState {
  readonly answer: ShortAnswer;
  readonly inFlight: number;
  /** Positions that are kept for clients of refused calls, which will come back. */
  readonly reserved: number;
  readonly headroom: Headroom | null;
  /** What multiples of the last hour's traffic and of the limits would meet; empty where nothing limits it. */
  readonly rehearsed: readonly Rehearsed[];
  /** The last quarter of an hour, the running minute last. */
  readonly minutes: readonly {
    readonly calls: number;
    readonly refused: number;
    /** Calls that ended in it and had waited. */
    readonly held: number;
  }[];
}

export interface AllUpstreams {
  /** Whether traffic can be raised, in words. */
  readonly answer: Answer;
  readonly upstreams: readonly UpstreamActivity[];
}
