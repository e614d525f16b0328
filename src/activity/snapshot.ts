/**
 * What `/activity` answers: the state of a workspace now and its pressure lately. Owns the shape of the JSON (described
 * by `docs/observability/activity.schema.json`); refuses to own limits and live state, which the gateway gives, and
 * headroom (`replays.ts`).
 */
import type { Clock } from '../clock.ts';
import { outcomes } from '../telemetry/outcome.policy.ts';
import { addInto, emptyCell, read, shedReasons, waitQuantile, type Cell } from './cell.ts';
import type { Headroom } from './headroom.policy.ts';
import type { LaneLimits } from './limits.policy.ts';
import type { LaneId, Recorder } from './recorder.ts';
import { createReplays, limitsOf, type LimitsSource } from './replays.ts';

/** What is left under one ceiling. */
export interface CeilingState {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until more places are free; 0 when there are some. Shown as whole ones, rounded up. */
  readonly resetMs: number;
}

export interface LaneNow {
  readonly perMinute: CeilingState | null;
  readonly perDay: CeilingState | null;
  /** Calls of this workspace that wait for this upstream, and that it has in flight there; all replicas. */
  readonly waiting: number;
  readonly inFlight: number;
  /** Expected wait of a call that arrived now, milliseconds; `null` = not known. */
  readonly nextSlotMs: number | null;
}

/** What the gateway tells activity. Asked only when somebody looks. */
export interface ActivitySource extends LimitsSource {
  now(workspaceId: string, upstream: string): Promise<LaneNow>;
  labelOf(workspaceId: string): string;
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
  readonly recent: RecentPressure;
  readonly headroom: Headroom | null;
}

export interface WorkspaceActivity {
  readonly workspace: string;
  readonly generatedAt: string;
  readonly windowSeconds: number;
  readonly replicas: number;
  readonly upstreams: readonly LaneActivity[];
}

/** Of all workspaces: those without a label of their own are added up under `other`, without state or headroom. */
export interface AllActivity {
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

export interface Activity {
  /** One workspace's own view. `windowMs` is rounded up to minutes, an hour at most. */
  ofWorkspace(workspaceId: string, windowMs: number): Promise<WorkspaceActivity>;
  ofAll(windowMs: number): Promise<AllActivity>;
}

export function createActivity(recorder: Recorder, source: ActivitySource, clock: Clock): Activity {
  const { headroomOf, breathe } = createReplays(recorder, source, clock);
  const minutesOf = (windowMs: number): number => Math.min(60, Math.max(1, Math.ceil(windowMs / 60_000)));
  const stamp = () => new Date(clock.now()).toISOString();

  async function laneOf(id: LaneId, limits: LaneLimits, minutes: number, lanes: readonly LaneId[]) {
    const [now, cell] = await Promise.all([
      source.now(id.workspaceId, id.upstream),
      recorder.sum(id.workspaceId, id.upstream, minutes),
    ]);
    const { perMinute, perDay, waiting, inFlight, nextSlotMs } = now;
    const recent = recentOf(cell);
    const lane: LaneActivity = {
      upstream: id.upstream,
      ceilings: { perMinute: inWholeMs(perMinute), perDay: inWholeMs(perDay) },
      waiting,
      inFlight,
      nextSlotMs: nextSlotMs === null ? null : Math.ceil(nextSlotMs),
      recent,
      headroom:
        limits.requestsPerMinute === null && limits.bucket === null
          ? null
          : await headroomOf(id, limits, lanes),
    };
    return lane;
  }

  return {
    async ofWorkspace(workspaceId, windowMs) {
      const minutes = minutesOf(windowMs);
      const lanes = await recorder.active(60);
      const upstreams: LaneActivity[] = [];
      for (const limits of source.limits(workspaceId)) {
        upstreams.push(await laneOf({ workspaceId, upstream: limits.upstream }, limits, minutes, lanes));
      }
      return {
        workspace: source.labelOf(workspaceId),
        generatedAt: stamp(),
        windowSeconds: minutes * 60,
        replicas: await source.replicas(),
        upstreams,
      };
    },

    async ofAll(windowMs) {
      const minutes = minutesOf(windowMs);
      const lanes = await recorder.active(60);
      const shown = new Map<string, LaneActivity[]>();
      const folded = new Map<string, Cell>();
      for (const [i, id] of lanes.entries()) {
        // Replays take a millisecond each.
        if (i % 4 === 3) await breathe();
        const label = source.labelOf(id.workspaceId);
        const limits = limitsOf(source, id);
        if (limits !== undefined && label.startsWith('w_')) {
          const own = shown.get(label) ?? [];
          own.push(await laneOf(id, limits, minutes, lanes));
          shown.set(label, own);
        } else {
          const total = folded.get(id.upstream) ?? emptyCell(0);
          addInto(total, await recorder.sum(id.workspaceId, id.upstream, minutes));
          folded.set(id.upstream, total);
        }
      }
      const workspaces: AllActivity['workspaces'][number][] = [...shown].map(([workspace, upstreams]) => ({
        workspace,
        upstreams,
      }));
      if (folded.size > 0) {
        const upstreams = [...folded].map(([upstream, cell]) => ({ upstream, recent: recentOf(cell) }));
        workspaces.push({ workspace: 'other', upstreams });
      }
      return {
        generatedAt: stamp(),
        windowSeconds: minutes * 60,
        replicas: await source.replicas(),
        workspaces,
      };
    },
  };
}

/** Rounded up: whoever comes back then finds the place free. */
const inWholeMs = (state: CeilingState | null): CeilingState | null =>
  state === null ? null : { ...state, resetMs: Math.ceil(state.resetMs) };

/** A cell as people read it: waits rounded to milliseconds, refusals only where there were any. */
export function recentOf(cell: Cell): RecentPressure {
  const byOutcome = Object.fromEntries(outcomes.map((outcome) => [outcome, read(cell, outcome)]));
  const calls = outcomes.reduce((sum, outcome) => sum + read(cell, outcome), 0);
  return {
    calls,
    outcomes: byOutcome,
    held: read(cell, 'held'),
    waitMs: {
      mean: calls > 0 ? Math.round(read(cell, 'waitSumMs') / calls) : 0,
      p50: Math.round(waitQuantile(cell, 0.5)),
      p95: Math.round(waitQuantile(cell, 0.95)),
      max: Math.round(read(cell, 'waitMaxMs')),
    },
    absorbed: read(cell, 'absorbed'),
    throttled: { rate: read(cell, 'throttledRate'), permanent: read(cell, 'throttledPermanent') },
    shed: Object.fromEntries(
      shedReasons.map((reason) => [reason, read(cell, reason)] as const).filter(([, n]) => n > 0),
    ),
  };
}
