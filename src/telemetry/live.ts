/**
 * The calls that wait or are in flight on this replica, by workspace and upstream. Gauges, `/activity` and the page read them.
 */
import type { MeterName } from '../call.ts';
import type { Settings, UpstreamKind, UpstreamSettings } from '../config/settings.ts';
import { ShortLived } from '../short-lived.ts';
import type { LivePressure } from './events.ts';

/** A call as it is counted. Ids stay in memory. */
export interface LiveCall {
  /** `null` while it is not known. */
  readonly workspaceId: string | null;
  readonly upstream: string;
  /** Monotonic milliseconds. */
  readonly receivedAt: number;
  /** False while it is in flight. */
  readonly isWaiting: boolean;
}

/** How many calls of one workspace wait and are in flight on one upstream, this replica. */
export interface LiveLane {
  readonly workspaceId: string;
  readonly upstream: string;
  readonly waiting: number;
  readonly inFlight: number;
}

const dimensionsOfKind: Record<UpstreamKind, readonly MeterName[]> = {
  'language-model': ['requests', 'tokens', 'requests_day', 'tokens_day'],
  commerce: ['requests', 'cost'],
  generic: ['requests', 'requests_day'],
};

export class Live {
  /** Those that wait or are in flight, by the id of their request. They are counted when somebody looks. */
  readonly calls = new ShortLived<string, LiveCall>();
  #shown: readonly UpstreamSettings[] = [];

  /** Upstreams whose pressure is shown from now on; calls on others go on. */
  reload({ upstreams }: Pick<Settings, 'upstreams'>): void {
    this.#shown = [...upstreams.values()];
  }

  /** The lanes that have calls now. */
  lanes(): Iterable<LiveLane> {
    const lanes = new Map<string, { -readonly [Key in keyof LiveLane]: LiveLane[Key] }>();
    for (const { workspaceId, upstream, isWaiting } of this.calls.values()) {
      if (workspaceId === null) continue;
      const name = `${upstream} ${workspaceId}`;
      let lane = lanes.get(name);
      if (lane === undefined) lanes.set(name, (lane = { workspaceId, upstream, waiting: 0, inFlight: 0 }));
      lane[isWaiting ? 'waiting' : 'inFlight'] += 1;
    }
    return lanes.values();
  }

  /** Pressure of each shown upstream. */
  read(now: number): readonly LivePressure[] {
    const shown = this.#shown.map(({ name, kind, mode }) => {
      const none = { waiting: 0, oldestMs: 0, inFlight: 0 };
      return { upstream: name, mode, dimensions: dimensionsOfKind[kind], ...none };
    });
    const byName = new Map(shown.map((pressure) => [pressure.upstream, pressure]));
    for (const { upstream, receivedAt, isWaiting } of this.calls.values()) {
      const pressure = byName.get(upstream);
      if (pressure === undefined) continue;
      pressure[isWaiting ? 'waiting' : 'inFlight'] += 1;
      if (isWaiting) pressure.oldestMs = Math.max(pressure.oldestMs, now - receivedAt);
    }
    return shown;
  }
}
