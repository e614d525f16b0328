/**
 * What `/activity` answers: the state of a workspace now and its pressure in the requested window, or that of all
 * workspaces. Owns what goes into a response; its shape is in `shape.ts`, limits and live state come from the gateway.
 */
import type { Clock } from '../clock.ts';
import { isEmpty, recentOf, takeOut, type Cell } from './cell.ts';
import type { Headrooms } from './headrooms.ts';
import type { Recorder } from './recorder.ts';
import type { ActivitySource, AllActivity, LaneActivity, WorkspaceActivity } from './shape.ts';
import type { Upstreams } from './upstreams.ts';
import { ShownLanes, type ElsewhereLane, type WorkspaceRow } from './shown-lanes.ts';

export type {
  ActivitySource,
  AllActivity,
  CeilingState,
  LaneActivity,
  LaneNow,
  RecentPressure,
  WorkspaceActivity,
} from './shape.ts';

export interface Activity {
  /** One workspace's own view. `windowMs` is rounded up to minutes, an hour at most. */
  ofWorkspace(workspaceId: string, windowMs: number): Promise<WorkspaceActivity>;
  ofAll(windowMs: number): Promise<AllActivity>;
}

export function createActivity(parts: {
  readonly recorder: Recorder;
  readonly source: ActivitySource;
  readonly headrooms: Headrooms;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
}): Activity {
  const { recorder, source, headrooms, clock } = parts;
  const lanes = new ShownLanes(recorder, source, { headrooms, clock });
  const minutesOf = (windowMs: number): number => Math.min(60, Math.max(1, Math.ceil(windowMs / 60_000)));
  const frame = async (minutes: number) => ({
    generatedAt: new Date(clock.now()).toISOString(),
    windowSeconds: minutes * 60,
    replicas: await source.replicas(),
  });
  return {
    async ofWorkspace(workspaceId, windowMs) {
      const minutes = minutesOf(windowMs);
      const all = await parts.upstreams.read();
      const upstreams: LaneActivity[] = [];
      for (const lane of await lanes.readCounts(lanes.of(workspaceId), { minutes })) {
        upstreams.push(await lanes.show(lane, all.upstreams));
      }
      return { workspace: source.labelOf(workspaceId), ...(await frame(minutes)), upstreams };
    },

    async ofAll(windowMs) {
      const minutes = minutesOf(windowMs);
      const { workspaceIds, elsewhere } = await source.labelled();
      const labelled = workspaceIds.flatMap((workspaceId) => lanes.of(workspaceId));
      // Totals first: a call that comes meanwhile is then in the row of its workspace, never in `other` for a moment.
      const span = { minutes, readSince: clock.monotonic() };
      const totals = await lanes.totals(span);
      const counted = await lanes.readCounts(await recorder.active(labelled, 60), span);
      const others = await lanes.readElsewhere(elsewhere, span);
      const all = await parts.upstreams.read();
      const rows = [...(await lanes.rows(counted, all.upstreams)), ...rowsOf(others)].sort(
        (a, b) => callsOf(b) - callsOf(a),
      );
      return {
        ...all,
        ...(await frame(minutes)),
        workspaces: [...rows, ...restOf(totals, [...counted, ...others])],
      };
    },
  };
}

const callsOf = ({ upstreams }: WorkspaceRow): number =>
  upstreams.reduce((sum, { recent }) => sum + recent.calls, 0);

const rowsOf = (lanes: readonly ElsewhereLane[]): WorkspaceRow[] =>
  [...Map.groupBy(lanes, ({ label }) => label)].map(([workspace, own]) => ({
    workspace,
    upstreams: own.map(({ upstream, cell }) => ({ upstream, recent: recentOf(cell) })),
  }));

/** The totals less what was counted in the lanes, as one row `other`. Returns no row when the rest is empty. */
function restOf(totals: ReadonlyMap<string, Cell>, lanes: readonly ElsewhereLane[]): readonly WorkspaceRow[] {
  const upstreams = [...totals].flatMap(([upstream, total]) => {
    const own = lanes.filter((lane) => lane.upstream === upstream).map(({ cell }) => cell);
    const rest = takeOut(total, own);
    return isEmpty(rest) ? [] : [{ upstream, recent: recentOf(rest) }];
  });
  return upstreams.length === 0 ? [] : [{ workspace: 'other', upstreams }];
}
