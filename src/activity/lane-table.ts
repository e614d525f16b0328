/**
 * A bounded table of activity lanes. An activity lane is one workspace on one upstream, whatever its buckets are.
 *
 * Owns: finding lanes, and which lane is evicted when a new one needs room. Does not own: what is counted in them (`recorder.ts`).
 *
 * The lane unused for longest is evicted. Spared are the busier half of all lanes and the lanes of workspaces that are shown under a
 * label of their own: thousands of workspaces with a single call do not evict the busy ones, and a workspace that just called does
 * not miss its own calls. How busy a lane was is kept for longer than the lane, so that a workspace whose calls come far apart among
 * many others is still known as busy.
 */
import { LRUCache } from 'lru-cache';
import { decayed } from '../telemetry/busyness.policy.ts';
import type { Minutes } from './cell.ts';

/** Names a lane by workspace and upstream. Stays in this process. */
export interface ActivityLaneId {
  readonly workspaceId: string;
  readonly upstream: string;
}

/** The last hour of a workspace on an upstream. Not a lane of a bucket: buckets of the same upstream count together here. */
export interface ActivityLane extends ActivityLaneId {
  readonly minutes: Minutes;
  /** The minutes of all workspaces together, which count the same facts. */
  readonly total: Minutes;
  /** Calls ended, decayed (`busyness.policy.ts`) to the minute `busyAt`. */
  busy: number;
  busyAt: number;
  /** True when a cell of the lane was published to the other replicas. */
  published: boolean;
}

/** For each lane of the table the busyness of this many evicted lanes is kept, about 100 bytes each. */
const evictedPerLane = 20;

/** Upstream names have no blank, so that the pair is unambiguous. */
const nameOf = ({ workspaceId, upstream }: ActivityLaneId): string => `${upstream} ${workspaceId}`;

/** How busy a lane is at a minute: its ended calls, decayed to that minute. */
export const busyIn = (lane: Pick<ActivityLane, 'busy' | 'busyAt'>, minute: number): number =>
  decayed(lane.busy, lane.busyAt, minute);

export interface LaneTableParts {
  /** Maximum number of lanes in the table. At least 2. */
  readonly max: number;
  /** True while the workspace is shown under a label of its own. */
  readonly isShown: (workspaceId: string) => boolean;
  /** Called when a lane was evicted. */
  readonly onEvicted: (lane: ActivityLane) => void;
}

export class ActivityLaneTable {
  readonly #parts: LaneTableParts;
  /** By upstream, then by workspace. Every call asks twice, and a joined name would be created each time. */
  readonly #byUpstream = new Map<string, Map<string, ActivityLane>>();
  /** The lane unused for longest first. */
  readonly #order = new Set<ActivityLane>();
  /** How busy evicted lanes were. */
  readonly #evicted: LRUCache<string, Pick<ActivityLane, 'busy' | 'busyAt'>>;
  /** Lanes busier than this are spared. It was the median when it was determined, so that at most half of the lanes are spared. */
  #sparedAbove = 0;
  /** False while the lanes of shown workspaces are so many that they, too, must be removed to make room for others. */
  #sparesShown = true;
  /** Lanes added since `#sparedAbove` was determined. */
  #addedSince = 0;

  constructor(parts: LaneTableParts) {
    this.#parts = parts;
    this.#evicted = new LRUCache({ max: evictedPerLane * parts.max });
  }

  get size(): number {
    return this.#order.size;
  }

  find(workspaceId: string, upstream: string): ActivityLane | undefined {
    return this.#byUpstream.get(upstream)?.get(workspaceId);
  }

  /** All lanes, the one unused for longest first. */
  values(): Iterable<ActivityLane> {
    return this.#order;
  }

  /** True for a lane of the busier half or of a shown workspace. Before the first eviction: for every lane that has ended a call. */
  isSpared(lane: ActivityLane, minute: number): boolean {
    if (busyIn(lane, minute) > this.#sparedAbove) return true;
    return this.#sparesShown && this.#parts.isShown(lane.workspaceId);
  }

  /** Adds a lane that is not in the table. If it was evicted before, it is as busy as it was then. */
  add(lane: ActivityLane, minute: number): void {
    const before = this.#evicted.get(nameOf(lane));
    if (before !== undefined) lane.busy += busyIn(before, minute);
    if (this.#order.size >= this.#parts.max) this.#makeRoom(minute);
    this.#addedSince += 1;
    this.#order.add(lane);
    let own = this.#byUpstream.get(lane.upstream);
    if (own === undefined) this.#byUpstream.set(lane.upstream, (own = new Map()));
    own.set(lane.workspaceId, lane);
  }

  /** Makes the lane the one used last. */
  touch(lane: ActivityLane): void {
    if (this.#order.delete(lane)) this.#order.add(lane);
  }

  #makeRoom(minute: number): void {
    // Sorting all lanes for each that is added would make its call expensive; done once per half a table, it costs each call a fraction of a microsecond.
    if (this.#addedSince >= this.#parts.max / 2) this.#determineSpared(minute);
    let tries = this.#order.size;
    for (const lane of this.#order) {
      tries -= 1;
      if (tries === 0 || !this.isSpared(lane, minute)) return this.#evict(lane);
      this.touch(lane);
    }
  }

  #determineSpared(minute: number): void {
    this.#addedSince = 0;
    const all = Float64Array.from(this.#order, (lane) => busyIn(lane, minute)).sort();
    this.#sparedAbove = all[all.length >> 1] ?? 0;
    let shown = 0;
    for (const { workspaceId } of this.#order) if (this.#parts.isShown(workspaceId)) shown += 1;
    this.#sparesShown = shown <= all.length / 4;
  }

  #evict(lane: ActivityLane): void {
    this.#order.delete(lane);
    this.#evicted.set(nameOf(lane), { busy: lane.busy, busyAt: lane.busyAt });
    const own = this.#byUpstream.get(lane.upstream);
    own?.delete(lane.workspaceId);
    if (own?.size === 0) this.#byUpstream.delete(lane.upstream);
    this.#parts.onEvicted(lane);
  }
}
