/**
 * Where a fact is counted: in the lane of its workspace and in the total of its upstream. Owns lanes, totals and which of
 * their cells changed since the last publication to the other replicas; does not own what a fact is (`recorder.ts`).
 *
 * A lane may be forgotten, a total never is: whichever workspaces are shown, their rows and the rest of the total are together
 * all calls.
 */
import type { Cell } from './cell.ts';
import { busyIn, ActivityLaneTable, type ActivityLane } from './lane-table.ts';
import { Minutes } from './minutes.ts';
import type { ActivityKey } from './shared.ts';

export interface CountOptions {
  /** Digest for the shared store: of a workspace's label, or the name of a total, and an upstream. */
  readonly keyOf: (label: string, upstream: string) => ActivityKey;
  /** Label of a workspace, under which its load is published to the other replicas. */
  readonly labelOf: (workspaceId: string) => string;
  /** True while the workspace is shown under a label of its own: it keeps its lanes. Default: never. */
  readonly isShown?: (workspaceId: string) => boolean;
  /** Lanes remembered. At least 2; default 1,000. */
  readonly maxLanes?: number;
}

/** Cells that the other replicas do not know yet, of totals first. */
export interface Changes {
  readonly totals: readonly { readonly of: Minutes; readonly cells: readonly Cell[] }[];
  readonly lanes: readonly { readonly of: ActivityLane; readonly cells: readonly Cell[] }[];
  /** Lanes that were published to the other replicas and have been evicted since. */
  readonly dropped: readonly ActivityKey[];
}

export class Counts {
  readonly lanes: ActivityLaneTable;
  readonly #options: CountOptions;
  readonly #totals = new Map<string, Minutes>();
  readonly #changedLanes = new Set<ActivityLane>();
  readonly #changedTotals = new Set<Minutes>();
  #evictedKeys: ActivityKey[] = [];

  constructor(options: CountOptions) {
    this.#options = options;
    this.lanes = new ActivityLaneTable({
      max: options.maxLanes ?? 1_000,
      isShown: options.isShown ?? (() => false),
      onEvicted: (lane) => {
        this.#changedLanes.delete(lane);
        if (lane.published) this.#evictedKeys.push(lane.minutes.key);
      },
    });
  }

  /** Returns the activity lane of a workspace on an upstream, and creates it if there is none. */
  lane(workspaceId: string, upstream: string, minute: number): ActivityLane {
    const known = this.lanes.find(workspaceId, upstream);
    if (known !== undefined) return known;
    const minutes = new Minutes(() => this.#keyOf(workspaceId, upstream));
    const lane: ActivityLane = {
      workspaceId,
      upstream,
      minutes,
      total: this.#totalFor(upstream),
      busy: 0,
      busyAt: minute,
      published: false,
    };
    this.lanes.add(lane, minute);
    return lane;
  }

  /** The lane's own cell of the minute. */
  own(lane: ActivityLane, minute: number): Cell {
    const running = lane.minutes.running(minute);
    if (running !== null) return running;
    // A lane comes here once a minute, or once after each publication.
    this.lanes.touch(lane);
    this.#changedLanes.add(lane);
    lane.busy = busyIn(lane, minute);
    lane.busyAt = Math.max(lane.busyAt, minute);
    return lane.minutes.begin(minute);
  }

  /** The cell of the minute in the lane's total, in which facts of many workspaces are counted together. */
  all({ total }: ActivityLane, minute: number): Cell {
    const running = total.running(minute);
    if (running !== null) return running;
    this.#changedTotals.add(total);
    return total.begin(minute);
  }

  /** The total of an upstream, if anything was recorded on this replica. */
  total(upstream: string): Minutes | undefined {
    return this.#totals.get(upstream);
  }

  /** Upstreams with anything recorded on this replica since it started. */
  upstreams(): Iterable<string> {
    return this.#totals.keys();
  }

  /** Digest of a lane. Asking does not make a lane, nor keep one from being forgotten. */
  keyOf(workspaceId: string, upstream: string): ActivityKey {
    return this.lanes.find(workspaceId, upstream)?.minutes.key ?? this.#keyOf(workspaceId, upstream);
  }

  /** Digest of the lane of a workspace of which only the label is known. */
  keyOfLabel(label: string, upstream: string): ActivityKey {
    return this.#options.keyOf(label, upstream);
  }

  #keyOf(workspaceId: string, upstream: string): ActivityKey {
    const { keyOf, labelOf } = this.#options;
    return keyOf(labelOf(workspaceId), upstream);
  }

  /** Digest of a total. No label is named so. */
  totalKeyOf(upstream: string): ActivityKey {
    return this.total(upstream)?.key ?? this.#options.keyOf(nameOfTotal, upstream);
  }

  /** Returns the cells that changed since the last call of this method. */
  takeChanges(): Changes {
    const totals = [...this.#changedTotals].map((of) => ({ of, cells: of.takeChanged() }));
    const lanes = [...this.#changedLanes].map((of) => ({ of, cells: of.minutes.takeChanged() }));
    const dropped = this.#evictedKeys;
    this.#changedTotals.clear();
    this.#changedLanes.clear();
    this.#evictedKeys = [];
    return { totals, lanes, dropped };
  }

  #totalFor(upstream: string): Minutes {
    let total = this.#totals.get(upstream);
    if (total === undefined) {
      total = new Minutes(() => this.#options.keyOf(nameOfTotal, upstream));
      this.#totals.set(upstream, total);
    }
    return total;
  }
}

const nameOfTotal = 'everybody';
