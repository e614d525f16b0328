/**
 * The calls that wait or are in flight on this replica, by workspace and upstream. Gauges, `/activity` and the page read them.
 */
import type { MeterName } from '../call.ts';
import type { Settings, UpstreamKind, UpstreamSettings } from '../config/settings.ts';
import type { LivePressure } from './events.ts';

/** A call as it is counted; no more is kept of it here. Ids stay in memory. */
export interface LiveCall {
  readonly workspaceId: string;
  readonly upstream: string;
  /** Monotonic milliseconds. */
  readonly receivedAt: number;
}

/** How many calls of one workspace wait and are in flight on one upstream, this replica. */
export interface LiveLane {
  readonly workspaceId: string;
  readonly upstream: string;
  readonly waiting: number;
  readonly inFlight: number;
}

interface LaneOfCalls {
  readonly waiting: Set<LiveCall>;
  readonly inFlight: Set<LiveCall>;
}

const dimensionsOfKind: Record<UpstreamKind, readonly MeterName[]> = {
  'language-model': ['requests', 'tokens', 'requests_day', 'tokens_day'],
  commerce: ['requests', 'cost'],
  generic: ['requests', 'requests_day'],
};

export class Live {
  /** By upstream, then workspace; a lane without calls is not kept. */
  readonly #lanes = new Map<string, Map<string, LaneOfCalls>>();
  #shown: readonly UpstreamSettings[] = [];

  /** Upstreams whose pressure is shown from now on; calls on others go on. */
  reload({ upstreams }: Pick<Settings, 'upstreams'>): void {
    this.#shown = [...upstreams.values()];
  }

  waits(call: LiveCall): void {
    this.#laneOf(call).waiting.add(call);
  }

  sent(call: LiveCall): void {
    const lane = this.#laneOf(call);
    lane.waiting.delete(call);
    lane.inFlight.add(call);
  }

  /** The call neither waits nor is in flight, whatever it was before. */
  left(call: LiveCall): void {
    const own = this.#lanes.get(call.upstream);
    const lane = own?.get(call.workspaceId);
    if (own === undefined || lane === undefined) return;
    lane.waiting.delete(call);
    lane.inFlight.delete(call);
    if (lane.waiting.size + lane.inFlight.size === 0) own.delete(call.workspaceId);
  }

  /** The lanes that have calls now. */
  *lanes(): Iterable<LiveLane> {
    for (const [upstream, own] of this.#lanes)
      for (const [workspaceId, { waiting, inFlight }] of own)
        yield { workspaceId, upstream, waiting: waiting.size, inFlight: inFlight.size };
  }

  /** Pressure of each shown upstream. */
  read(now: number): readonly LivePressure[] {
    return this.#shown.map(({ name, kind }) => {
      const pressure = { upstream: name, dimensions: dimensionsOfKind[kind], waiting: 0, inFlight: 0 };
      let oldest = now;
      for (const { waiting, inFlight } of this.#lanes.get(name)?.values() ?? []) {
        pressure.waiting += waiting.size;
        pressure.inFlight += inFlight.size;
        for (const { receivedAt } of waiting) oldest = Math.min(oldest, receivedAt);
      }
      return { ...pressure, oldestMs: now - oldest };
    });
  }

  #laneOf({ upstream, workspaceId }: LiveCall): LaneOfCalls {
    let own = this.#lanes.get(upstream);
    if (own === undefined) this.#lanes.set(upstream, (own = new Map<string, LaneOfCalls>()));
    let lane = own.get(workspaceId);
    if (lane === undefined) own.set(workspaceId, (lane = { waiting: new Set(), inFlight: new Set() }));
    return lane;
  }
}
