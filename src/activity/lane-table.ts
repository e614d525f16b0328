/**
 * The lanes that a replica remembers, a bounded number of them. Owns finding them and which one goes when another needs
 * its room; does not own what is counted in them.
 *
 * The lane unused for longest goes, but the busier half of all lanes is spared, and so are those of workspaces that are
 * shown by name: neither do thousands of workspaces with a single call push out the busy ones, nor does a workspace that
 * just called miss its own calls. How busy a lane was is remembered for longer than the lane, so that a workspace is known
 * as busy whose calls come far apart among many others.
 */
import { LRUCache } from 'lru-cache';
import { decayed } from '../telemetry/busyness.policy.ts';
import type { Minutes } from './minutes.ts';

/** Whose lane. Stays in this process. */
export interface LaneId {
  readonly workspaceId: string;
  readonly upstream: string;
}

/** The last hour of a workspace on an upstream. */
export interface Lane extends LaneId {
  readonly minutes: Minutes;
  /** Where the same facts are counted for all workspaces. */
  total: Minutes;
  /** Calls ended, decayed (`busyness.policy.ts`) to the minute `busyAt`. */
  busy: number;
  busyAt: number;
  /** True when a cell of the lane was published to the other replicas. */
  published: boolean;
}

/** Lanes of which only the busyness is remembered, for each lane that is remembered whole: about 100 bytes each. */
const forgottenPerLane = 20;

/** Upstream names have no blank, so that the pair is unambiguous. */
const nameOf = ({ workspaceId, upstream }: LaneId): string => `${upstream} ${workspaceId}`;

/** How busy a lane is at a minute. */
export const busyIn = (lane: Pick<Lane, 'busy' | 'busyAt'>, minute: number): number =>
  decayed(lane.busy, lane.busyAt, minute);

export interface LaneTableParts {
  /** Lanes remembered. At least 2. */
  readonly max: number;
  /** True while the workspace is shown by name. */
  readonly isShown: (workspaceId: string) => boolean;
  /** Hears of a lane that had to go. */
  readonly onDropped: (lane: Lane) => void;
}

export class LaneTable {
  readonly #parts: LaneTableParts;
  /** Every call asks twice, so the lanes are found by two names rather than by one put together. */
  readonly #found = new Map<string, Map<string, Lane>>();
  /** The lane unused for longest first. */
  readonly #order = new Set<Lane>();
  readonly #forgotten: LRUCache<string, Pick<Lane, 'busy' | 'busyAt'>>;
  /** Busier lanes than this are spared; fewer than half of the lanes were when it was determined. */
  #sparedAbove = 0;
  /** Lanes of shown workspaces are spared; not while they are so many that there would be no room for others. */
  #sparesShown = true;
  #addedSince = 0;

  constructor(parts: LaneTableParts) {
    this.#parts = parts;
    this.#forgotten = new LRUCache({ max: forgottenPerLane * parts.max });
  }

  get size(): number {
    return this.#order.size;
  }

  find(workspaceId: string, upstream: string): Lane | undefined {
    return this.#found.get(upstream)?.get(workspaceId);
  }

  /** The lane unused for longest first. */
  values(): Iterable<Lane> {
    return this.#order;
  }

  /** True for a lane of the busier half or of a shown workspace; for every lane with a call while there was room for all. */
  isSpared(lane: Lane, minute: number): boolean {
    if (busyIn(lane, minute) > this.#sparedAbove) return true;
    return this.#sparesShown && this.#parts.isShown(lane.workspaceId);
  }

  /** Takes in a lane that is not in the table, as busy as it was when it was forgotten. */
  add(lane: Lane, minute: number): void {
    const before = this.#forgotten.get(nameOf(lane));
    if (before !== undefined) lane.busy += busyIn(before, minute);
    if (this.#order.size >= this.#parts.max) this.#makeRoom(minute);
    this.#addedSince += 1;
    this.#order.add(lane);
    let own = this.#found.get(lane.upstream);
    if (own === undefined) this.#found.set(lane.upstream, (own = new Map()));
    own.set(lane.workspaceId, lane);
  }

  /** The lane is in use. */
  touch(lane: Lane): void {
    if (this.#order.delete(lane)) this.#order.add(lane);
  }

  #makeRoom(minute: number): void {
    // Sorting all lanes for every newcomer would make its call expensive; once per half a table is a fraction of a microsecond.
    if (this.#addedSince >= this.#parts.max / 2) this.#determineSpared(minute);
    let tries = this.#order.size;
    for (const lane of this.#order) {
      tries -= 1;
      if (tries === 0 || !this.isSpared(lane, minute)) return this.#drop(lane);
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

  #drop(lane: Lane): void {
    this.#order.delete(lane);
    this.#forgotten.set(nameOf(lane), { busy: lane.busy, busyAt: lane.busyAt });
    const own = this.#found.get(lane.upstream);
    own?.delete(lane.workspaceId);
    if (own?.size === 0) this.#found.delete(lane.upstream);
    this.#parts.onDropped(lane);
  }
}
