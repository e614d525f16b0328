/**
 * The lanes in a response of `/activity`: which lanes a workspace has, their counts, and the form in which they are shown. Owns:
 * also the pauses between lanes, in which the process handles other events. Does not own: counting (`recorder.ts`), headroom
 * (`headrooms.ts`).
 */
import type { Clock } from '../clock.ts';
import { workspaceAnswer } from './answer.policy.ts';
import { isEmpty, recentOf, refusedIn, type Cell } from './cell.ts';
import type { Headrooms } from './headrooms.ts';
import type { ActivityLaneId, Recorder, Span } from './recorder.ts';
import type { ActivitySource, AllActivity, CeilingState, LaneActivity, UpstreamActivity } from './shape.ts';

/** A lane that may be shown, with the label of its workspace. */
export interface ShownLane extends ActivityLaneId {
  readonly label: string;
}

/** A lane that may be shown, with its counts. */
export interface CountedLane extends ShownLane {
  readonly cell: Cell;
}

/** The counts of a workspace on an upstream, of which this replica knows the label only. */
export type ElsewhereLane = Pick<CountedLane, 'label' | 'upstream' | 'cell'>;

/** One workspace with its lanes. */
export type WorkspaceRow = AllActivity['workspaces'][number];

/** Lanes whose counts are read concurrently, because counts of other replicas are read over the network. */
const readAtOnce = 16;
/** Lanes shown in one go, before other events are handled: the replay of each takes 1 to 2 ms (`headrooms.ts`). */
const shownAtOnce = 4;

export class ShownLanes {
  readonly #recorder: Recorder;
  readonly #source: ActivitySource;
  readonly #headrooms: Headrooms;
  readonly #clock: Clock;

  constructor(
    recorder: Recorder,
    source: ActivitySource,
    { headrooms, clock }: { readonly headrooms: Headrooms; readonly clock: Clock },
  ) {
    this.#recorder = recorder;
    this.#source = source;
    this.#headrooms = headrooms;
    this.#clock = clock;
  }

  /** All lanes that a workspace may have. */
  of(workspaceId: string): readonly ShownLane[] {
    const label = this.#source.labelOf(workspaceId);
    const upstreams = this.#source.upstreamsOf(workspaceId);
    return Array.from(upstreams, (upstream) => ({ workspaceId, upstream, label }));
  }

  /** Reads the counts of each lane. */
  async readCounts(lanes: readonly ShownLane[], span: Span): Promise<readonly CountedLane[]> {
    const found: CountedLane[] = [];
    for (let from = 0; from < lanes.length; from += readAtOnce) {
      if (from > 0) await this.#headrooms.yieldToCalls();
      const some = lanes.slice(from, from + readAtOnce);
      const reading = some.map(async (lane) => ({ ...lane, cell: await this.#recorder.sum(lane, span) }));
      found.push(...(await Promise.all(reading)));
    }
    return found;
  }

  /** The counts of workspaces that have called other replicas only, by their labels. */
  async readElsewhere(labels: readonly string[], span: Span): Promise<readonly ElsewhereLane[]> {
    const found: ElsewhereLane[] = [];
    for (const label of labels) {
      const reading = [...this.#source.upstreams()].map(async (upstream) => {
        const cell = await this.#recorder.sumElsewhere(label, upstream, span);
        return { label, upstream, cell };
      });
      found.push(...(await Promise.all(reading)).filter(({ cell }) => !isEmpty(cell)));
    }
    return found;
  }

  /** The counts of each upstream, over all workspaces. */
  async totals(span: Span): Promise<ReadonlyMap<string, Cell>> {
    const found = new Map<string, Cell>();
    for (const upstream of [...this.#source.upstreams(), ...this.#recorder.upstreams()]) {
      if (!found.has(upstream)) found.set(upstream, await this.#recorder.total(upstream, span));
    }
    return found;
  }

  /** One row for each workspace, in the order of the lanes. */
  async rows(
    lanes: readonly CountedLane[],
    upstreams: readonly UpstreamActivity[],
  ): Promise<readonly WorkspaceRow[]> {
    const byLabel = new Map<string, LaneActivity[]>();
    for (const [i, lane] of lanes.entries()) {
      if (i % shownAtOnce === shownAtOnce - 1) await this.#headrooms.yieldToCalls();
      const own = byLabel.get(lane.label) ?? [];
      own.push(await this.show(lane, upstreams));
      byLabel.set(lane.label, own);
    }
    return [...byLabel].map(([workspace, upstreams]) => ({ workspace, upstreams }));
  }

  /** The lane as `/activity` shows it: with its state now and its headroom. */
  async show(
    { workspaceId, upstream, cell }: CountedLane,
    upstreams: readonly UpstreamActivity[],
  ): Promise<LaneActivity> {
    const headroom = await this.#headrooms.ofLane({ workspaceId, upstream });
    const state = upstreams.find((each) => each.upstream === upstream) ?? null;
    const now = await this.#source.now(workspaceId, upstream);
    const {
      perMinute,
      perDay,
      waiting,
      inFlight,
      nextSlotMs,
      maxInFlightTotal,
      reserved,
      callers,
      refusing,
    } = now;
    return {
      upstream,
      ceilings: { perMinute: inWholeMs(perMinute), perDay: inWholeMs(perDay) },
      waiting,
      inFlight,
      nextSlotMs: nextSlotMs === null ? null : Math.ceil(nextSlotMs),
      maxInFlightTotal,
      reserved,
      callers,
      refusing: refusing === null ? null : { ...refusing, retryInMs: Math.ceil(refusing.retryInMs) },
      recent: recentOf(cell),
      headroom,
      answer: workspaceAnswer(
        state,
        { growth: headroom?.growth ?? null, refused: refusedIn(cell) },
        this.#clock.now(),
      ),
    };
  }
}

/** Rounds up, so that a client that returns then finds the slot free. */
const inWholeMs = (state: CeilingState | null): CeilingState | null =>
  state === null ? null : { ...state, resetMs: Math.ceil(state.resetMs) };
