/**
 * How many calls wait and how many attempts are in flight on this replica, per configured upstream and per workspace there.
 * Owns: these counts; gauges and the activity page read them. Invariant: every `+1` has its `-1`, however a call ends.
 */
import type { MeterName } from '../call.ts';
import type { UpstreamKind, UpstreamSettings } from '../config/settings.ts';
import type { LivePressure } from './events.ts';

/** Pressure of one upstream, changed by calls. */
export interface LiveUpstream {
  /** Waiting calls by id (an outgrown table of a `Map` would keep the calls themselves alive), and when each was received. */
  readonly waiting: Map<string, number>;
  inFlight: number;
}

const dimensionsOfKind: Record<UpstreamKind, readonly MeterName[]> = {
  'language-model': ['requests', 'tokens', 'requests_day', 'tokens_day'],
  commerce: ['requests', 'cost'],
  generic: ['requests', 'requests_day'],
};

/** Pressure of one workspace on one upstream, this replica: found once per call, then only added to. */
export interface FollowedLane {
  readonly workspaceId: string;
  readonly upstream: string;
  /** Calls that hold it; the last one takes it away. */
  calls: number;
  waiting: number;
  inFlight: number;
}

export class Live {
  readonly #all = new Map<string, LiveUpstream>();
  /** By upstream, then workspace, so that no combined key has to be built to find a lane. */
  readonly #lanes = new Map<string, Map<string, FollowedLane>>();
  #shown: readonly { readonly name: string; readonly kind: UpstreamKind }[] = [];

  /** Counters of an upstream; a call in flight keeps them over a reload that removes the upstream. */
  of(upstream: string): LiveUpstream {
    let live = this.#all.get(upstream);
    if (live === undefined) this.#all.set(upstream, (live = { waiting: new Map(), inFlight: 0 }));
    return live;
  }

  /** Counters of a workspace on an upstream, for a call until it {@link leave}s. Ids stay in memory. */
  enter(workspaceId: string, upstream: string): FollowedLane {
    let own = this.#lanes.get(upstream);
    if (own === undefined) this.#lanes.set(upstream, (own = new Map()));
    let lane = own.get(workspaceId);
    if (lane === undefined) {
      own.set(workspaceId, (lane = { workspaceId, upstream, calls: 0, waiting: 0, inFlight: 0 }));
    }
    lane.calls += 1;
    return lane;
  }

  leave(lane: FollowedLane): void {
    lane.calls -= 1;
    if (lane.calls === 0) this.#lanes.get(lane.upstream)?.delete(lane.workspaceId);
  }

  /** The lanes that have calls now. */
  *lanes(): Iterable<FollowedLane> {
    for (const own of this.#lanes.values()) yield* own.values();
  }

  configured(upstreams: Iterable<UpstreamSettings>): void {
    this.#shown = [...upstreams].map(({ name, kind }) => ({ name, kind }));
  }

  read(now: number): readonly LivePressure[] {
    return this.#shown.map(({ name, kind }) => {
      const { waiting, inFlight } = this.of(name);
      // A call that returns to its lane is last in the map but not the youngest, so all of them are compared.
      let oldest = now;
      for (const receivedAt of waiting.values()) oldest = Math.min(oldest, receivedAt);
      return {
        upstream: name,
        dimensions: dimensionsOfKind[kind],
        waiting: waiting.size,
        oldestMs: now - oldest,
        inFlight,
      };
    });
  }
}
