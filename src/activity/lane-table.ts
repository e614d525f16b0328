/**
 * A bounded table of activity lanes. An activity lane is one workspace on one upstream, whatever its buckets are.
 *
 * The lane unused for longest is evicted; lanes of workspaces that are shown under a label of their own only when there are no others.
 */
import { decayed } from '../telemetry/labels.ts';
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
  /** Calls ended, decayed (`telemetry/labels.ts`) to the minute `busyAt`. */
  busy: number;
  busyAt: number;
}

/** How busy a lane is at a minute: its ended calls, decayed to that minute. */
export const busyIn = (lane: Pick<ActivityLane, 'busy' | 'busyAt'>, minute: number): number =>
  decayed(lane.busy, lane.busyAt, minute);

export class ActivityLaneTable {
  readonly #max: number;
  readonly #isShown: (workspaceId: string) => boolean;
  /** By upstream, then by workspace. Every call asks twice, and a joined name would be created each time. */
  readonly #byUpstream = new Map<string, Map<string, ActivityLane>>();
  /** The lane unused for longest first. */
  readonly #order = new Set<ActivityLane>();

  /** `isShown`: true while the workspace is shown under a label of its own. */
  constructor(max: number, isShown: (workspaceId: string) => boolean) {
    this.#max = max;
    this.#isShown = isShown;
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

  /** Adds a lane that is not in the table. */
  add(lane: ActivityLane): void {
    if (this.#order.size >= this.#max) this.#makeRoom();
    this.#order.add(lane);
    let own = this.#byUpstream.get(lane.upstream);
    if (own === undefined) this.#byUpstream.set(lane.upstream, (own = new Map()));
    own.set(lane.workspaceId, lane);
  }

  /** Makes the lane the one used last. */
  touch(lane: ActivityLane): void {
    if (this.#order.delete(lane)) this.#order.add(lane);
  }

  #makeRoom(): void {
    let tries = this.#order.size;
    for (const lane of this.#order) {
      tries -= 1;
      if (tries > 0 && this.#isShown(lane.workspaceId)) this.touch(lane);
      else {
        this.#order.delete(lane);
        this.#byUpstream.get(lane.upstream)?.delete(lane.workspaceId);
        return;
      }
    }
  }
}
