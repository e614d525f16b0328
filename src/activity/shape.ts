/**
 * The shape of what `/activity` answers (described by `schema/activity.schema.json`), and what has to be known
 * to answer.
 */
import type { Headroom, Rehearsed } from './headroom.policy.ts';
import type { CallerNow } from '../limiter/limiter.ts';
import type { Answer, ShortAnswer, UpstreamState } from './answer.policy.ts';

/** Callers of a workspace that are shown at most. */
export const maxShownCallers = 20;

/** What is left under one ceiling. */
export interface CeilingState {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until more slots are free; 0 when there are some. Shown as whole ones, rounded up. */
  readonly resetMs: number;
}

/** An upstream refuses calls for a reason that waiting does not cure. */
export interface PermanentlyRefusing {
  readonly status: number;
  /** Until one call is let through to ask again, milliseconds. */
  readonly retryInMs: number;
  /** What the provider's own error said; `null` = no known word. */
  readonly said: string | null;
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
  readonly refusing: PermanentlyRefusing | null;
}

export interface LaneNow extends CeilingsNow {
  /** Calls of this workspace that wait for this upstream, and that it has in flight there; all replicas. */
  readonly waiting: number;
  readonly inFlight: number;
}

/** Who is shown by label, together at most as many as there are labels. */
export interface Labelled {
  readonly workspaceIds: readonly string[];
  /** Labels of workspaces that have called other replicas only. */
  readonly elsewhere: readonly string[];
}

/** What the gateway reports to activity. Asked only when a page or an API call needs it. */
export interface ActivitySource {
  /** Upstreams that a workspace may call; empty for an unknown workspace. */
  upstreamsOf(workspaceId: string): Iterable<string>;
  now(workspaceId: string, upstream: string): Promise<LaneNow>;
  labelOf(workspaceId: string): string;
  /** Who is shown by label now, the busiest of all replicas among them. */
  labelled(): Promise<Labelled>;
  /** Names of all configured upstreams. */
  upstreams(): Iterable<string>;
  replicas(): Promise<number>;
}

export interface RecentPressure {
  readonly calls: number;
  readonly outcomes: Record<string, number>;
  /** Calls that waited at all. */
  readonly held: number;
  readonly waitMs: {
    readonly mean: number;
    readonly p50: number;
    readonly p95: number;
    readonly max: number;
  };
  readonly absorbed: number;
  readonly throttled: { readonly rate: number; readonly permanent: number };
  readonly shed: Record<string, number>;
}

export interface LaneActivity {
  readonly upstream: string;
  readonly ceilings: { readonly perMinute: CeilingState | null; readonly perDay: CeilingState | null };
  readonly waiting: number;
  readonly inFlight: number;
  readonly nextSlotMs: number | null;
  readonly maxInFlightTotal: number | null;
  readonly reserved: number;
  readonly callers: readonly CallerNow[];
  readonly refusing: PermanentlyRefusing | null;
  readonly recent: RecentPressure;
  readonly headroom: Headroom | null;
  /** Whether this workspace can send more, in words. */
  readonly answer: ShortAnswer;
}

export interface WorkspaceActivity {
  readonly workspace: string;
  readonly generatedAt: string;
  readonly windowSeconds: number;
  readonly replicas: number;
  readonly upstreams: readonly LaneActivity[];
}

/**
 * Of all workspaces: those with a label of their own, the one with most calls first, and `other`: all calls that are not
 * in those rows. Without state and headroom: `other`, and workspaces that have called other replicas only. The rows of an upstream
 * together are all calls to it.
 */
export interface AllActivity {
  /** Whether traffic can be raised, in words. */
  readonly answer: Answer;
  readonly upstreams: readonly UpstreamActivity[];
  readonly generatedAt: string;
  readonly windowSeconds: number;
  readonly replicas: number;
  readonly workspaces: readonly {
    readonly workspace: string;
    readonly upstreams: readonly (
      LaneActivity | { readonly upstream: string; readonly recent: RecentPressure }
    )[];
  }[];
}

/** One minute of an upstream. */
export interface MinuteOfUpstream {
  readonly calls: number;
  readonly refused: number;
  /** Calls that ended in it and had waited. */
  readonly held: number;
}

export interface UpstreamActivity extends UpstreamState {
  readonly answer: ShortAnswer;
  readonly inFlight: number;
  readonly headroom: Headroom | null;
  /** What multiples of the last hour's traffic would meet; empty where nothing limits it. */
  readonly rehearsed: readonly Rehearsed[];
  /** The last quarter of an hour, the running minute last. */
  readonly minutes: readonly MinuteOfUpstream[];
}

export interface AllUpstreams {
  readonly answer: Answer;
  readonly upstreams: readonly UpstreamActivity[];
}
