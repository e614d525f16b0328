/**
 * Who waits and who is in flight on this replica, per configured upstream. Owns two sets of numbers that gauges, the
 * activity page and nobody else read. Invariant: every `+1` has its `-1`, whatever path a call ends on.
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

/** Pressure of one workspace on one upstream, this replica. */
export interface LaneLive {
  readonly waiting: number;
  readonly inFlight: number;
}

export interface Live {
  /** Adds to the counters of a workspace on an upstream; they go when both are 0. Ids stay in memory. */
  lane(workspaceId: string, upstream: string, change: Partial<LaneLive>): void;
  readLane(workspaceId: string, upstream: string): LaneLive;
  configured(upstreams: Iterable<UpstreamSettings>): void;
  /** Counters of an upstream; a call in flight keeps them over a reload that removes the upstream. */
  of(upstream: string): LiveUpstream;
  read(now: number): readonly LivePressure[];
}

export function createLive(): Live {
  const all = new Map<string, LiveUpstream>();
  const lanes = new Map<string, { waiting: number; inFlight: number }>();
  /** Upstream names have no blank, so that the pair is unambiguous. */
  const laneName = (workspaceId: string, upstream: string): string => `${upstream} ${workspaceId}`;
  let shown: readonly { readonly name: string; readonly kind: UpstreamKind }[] = [];

  function of(upstream: string): LiveUpstream {
    let live = all.get(upstream);
    if (live === undefined) all.set(upstream, (live = { waiting: new Map(), inFlight: 0 }));
    return live;
  }

  return {
    of,
    lane(workspaceId, upstream, change) {
      const name = laneName(workspaceId, upstream);
      let lane = lanes.get(name);
      if (lane === undefined) lanes.set(name, (lane = { waiting: 0, inFlight: 0 }));
      lane.waiting += change.waiting ?? 0;
      lane.inFlight += change.inFlight ?? 0;
      if (lane.waiting === 0 && lane.inFlight === 0) lanes.delete(name);
    },
    readLane: (workspaceId, upstream) =>
      lanes.get(laneName(workspaceId, upstream)) ?? { waiting: 0, inFlight: 0 },
    configured(upstreams) {
      shown = [...upstreams].map(({ name, kind }) => ({ name, kind }));
    },
    read(now) {
      return shown.map(({ name, kind }) => {
        const { waiting, inFlight } = of(name);
        // A call that goes back to its line is last in the map but not the youngest: look at all of them.
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
    },
  };
}
