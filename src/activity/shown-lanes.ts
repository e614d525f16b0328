/**
 * Lanes on their way to somebody who looks: which there are, what was counted in them, how they are shown. Owns the pauses
 * in which calls in flight have their turn; does not own counts (`recorder.ts`) and headroom (`replays.ts`).
 */
import type { Clock } from '../clock.ts';
import type { Cell } from './cell.ts';
import type { LaneLimits } from './limits.policy.ts';
import { recentOf } from './recent.ts';
import type { LaneId, Recorder, Span } from './recorder.ts';
import { createReplays, type Replays } from './replays.ts';
import type { ActivitySource, CeilingState, LaneActivity } from './shape.ts';

/** A lane that may be shown, and under which label. */
export interface ShownLane extends LaneId {
  readonly label: string;
  readonly limits: LaneLimits;
}

/** The same with what was counted in it. */
export interface CountedLane extends ShownLane {
  readonly cell: Cell;
}

/** One workspace with its lanes. */
export interface WorkspaceRow {
  readonly workspace: string;
  readonly upstreams: readonly LaneActivity[];
}

/** Lanes read at once: their counts may come from another machine. */
const readAtOnce = 16;
/** Lanes shown before calls in flight go on: the replay of each takes a millisecond. */
const shownAtOnce = 4;

export class ShownLanes {
  readonly #recorder: Recorder;
  readonly #source: ActivitySource;
  readonly #replays: Replays;

  constructor(recorder: Recorder, source: ActivitySource, clock: Clock) {
    this.#recorder = recorder;
    this.#source = source;
    this.#replays = createReplays(recorder, clock);
  }

  /** All lanes that a workspace may have. */
  of(workspaceId: string): readonly ShownLane[] {
    const label = this.#source.labelOf(workspaceId);
    const limited = this.#source.limits(workspaceId);
    return limited.map((limits) => ({ workspaceId, upstream: limits.upstream, label, limits }));
  }

  async counted(lanes: readonly ShownLane[], span: Span): Promise<readonly CountedLane[]> {
    const found: CountedLane[] = [];
    for (let from = 0; from < lanes.length; from += readAtOnce) {
      if (from > 0) await this.#replays.breathe();
      const some = lanes.slice(from, from + readAtOnce);
      const reading = some.map(async (lane) => ({ ...lane, cell: await this.#recorder.sum(lane, span) }));
      found.push(...(await Promise.all(reading)));
    }
    return found;
  }

  /** What was counted on each upstream, of all workspaces together. */
  async totals(span: Span): Promise<ReadonlyMap<string, Cell>> {
    const found = new Map<string, Cell>();
    for (const upstream of [...this.#source.upstreams(), ...this.#recorder.upstreams()]) {
      if (!found.has(upstream)) found.set(upstream, await this.#recorder.total(upstream, span));
    }
    return found;
  }

  /** One row for each workspace, in the order of the lanes. */
  async rows(lanes: readonly CountedLane[]): Promise<readonly WorkspaceRow[]> {
    const byLabel = new Map<string, LaneActivity[]>();
    for (const [i, lane] of lanes.entries()) {
      if (i % shownAtOnce === shownAtOnce - 1) await this.#replays.breathe();
      const own = byLabel.get(lane.label) ?? [];
      own.push(await this.shown(lane));
      byLabel.set(lane.label, own);
    }
    return [...byLabel].map(([workspace, upstreams]) => ({ workspace, upstreams }));
  }

  async shown({ workspaceId, upstream, limits, cell }: CountedLane): Promise<LaneActivity> {
    const now = await this.#source.now(workspaceId, upstream);
    const { perMinute, perDay, waiting, inFlight, nextSlotMs, refusing } = now;
    const isLimited = limits.requestsPerMinute !== null || limits.bucket !== null;
    return {
      upstream,
      ceilings: { perMinute: inWholeMs(perMinute), perDay: inWholeMs(perDay) },
      waiting,
      inFlight,
      nextSlotMs: nextSlotMs === null ? null : Math.ceil(nextSlotMs),
      refusing: refusing === null ? null : { ...refusing, retryInMs: Math.ceil(refusing.retryInMs) },
      recent: recentOf(cell),
      headroom: isLimited ? await this.#replays.headroomOf({ workspaceId, upstream }, limits) : null,
    };
  }
}

/** Rounded up, so that the slot is free for a client that returns then. */
const inWholeMs = (state: CeilingState | null): CeilingState | null =>
  state === null ? null : { ...state, resetMs: Math.ceil(state.resetMs) };
