/**
 * How much more traffic fits, of an upstream and of each workspace on it: the arrivals of the last hour, replayed against the limits in
 * force (`headroom.policy.ts`). Owns which lanes are replayed apart: those with the fullest ceilings and those with most calls.
 */
import type { MeterSnapshot } from '../bucket.ts';
import type { Clock } from '../clock.ts';
import { countedUnits, type Cell } from './cell.policy.ts';
import {
  headroom,
  rehearsed,
  sum,
  type Headroom,
  type Rehearsed,
  type ReplayedLane,
  type ReplayedWindow,
  type Scene,
} from './headroom.policy.ts';
import type { Hour, Recorder } from './recorder.ts';
import type { InForce, LaneInForce } from './shape.ts';
import { hourMs } from '../time-units.ts';

/** The limits of upstreams. */
export interface LimitsSource {
  /** The limits in force, and where no call has met any, those of the configuration. `null`: there is no such upstream. */
  inForce(upstream: string): InForce | null;
  /** What holds a workspace's calls that this replica has not seen, as configured. */
  configured(
    workspaceId: string,
    upstream: string,
  ): Omit<LaneInForce, 'workspaceId' | 'bucket' | 'calls' | 'used'> | null;
}

/** How long a headroom is shown before it is reckoned again, milliseconds. */
const goodMs = 15_000;
/** Lanes of an upstream that are replayed one by one: those with the fullest ceilings, and as many of those with most calls. */
const apartOfEach = 10;
/** A call counts in a rolling window until the last moment at which its upstream may count it, about this much longer (`window-log.policy.ts`): as if the limit were as much lower. */
const rollingMargin = 1.03;

/** The replays of one upstream, at one instant. */
interface Reckoning {
  readonly until: number;
  readonly hour: Promise<Hour>;
  readonly found: Map<string, Promise<unknown>>;
}

export class Headrooms {
  readonly #recorder: Pick<Recorder, 'hour' | 'nameOf'>;
  readonly #source: LimitsSource;
  readonly #clock: Pick<Clock, 'monotonic' | 'after'>;
  readonly #reckonings = new Map<string, Reckoning>();

  constructor(
    recorder: Pick<Recorder, 'hour' | 'nameOf'>,
    source: LimitsSource,
    clock: Pick<Clock, 'monotonic' | 'after'>,
  ) {
    this.#recorder = recorder;
    this.#source = source;
    this.#clock = clock;
  }

  /** Of all workspaces together. `null`: there is no such upstream. */
  ofUpstream(upstream: string): Promise<Headroom | null> {
    return this.#once(upstream, 'all', async (hour) => {
      const scene = this.#scene(upstream, hour);
      return scene === null ? null : headroom(scene, hour.sum(upstream).refusedForRoom, this.yieldToCalls);
    });
  }

  /** What some multiples of the traffic of all workspaces would meet. */
  rehearsed(upstream: string): Promise<readonly Rehearsed[]> {
    return this.#once(upstream, 'rehearsed', async (hour) => {
      const scene = this.#scene(upstream, hour);
      return scene === null ? [] : rehearsed(scene, this.yieldToCalls);
    });
  }

  /** Of one workspace, while the others' traffic stays as it is. */
  ofLane(workspaceId: string, upstream: string): Promise<Headroom | null> {
    const name = this.#recorder.nameOf(workspaceId, upstream);
    return this.#once(upstream, name, async (hour) => {
      const scene = this.#scene(upstream, hour, workspaceId);
      return scene === null ? null : headroom(scene, hour.sum(name).refusedForRoom, this.yieldToCalls);
    });
  }

  /** Resolves after other events have been handled, so that calls do not wait for many replays in a row. */
  readonly yieldToCalls = (): Promise<void> => new Promise((resume) => void this.#clock.after(0, resume));

  async #once<T>(upstream: string, name: string, reckon: (hour: Hour) => Promise<T>): Promise<T> {
    const now = this.#clock.monotonic();
    let reckoning = this.#reckonings.get(upstream);
    if (reckoning === undefined || now >= reckoning.until) {
      reckoning = { until: now + goodMs, hour: this.#recorder.hour(), found: new Map() };
      this.#reckonings.set(upstream, reckoning);
    }
    const { hour, found } = reckoning;
    const known =
      found.get(name) ?? hour.then(async (counted) => (await this.yieldToCalls(), reckon(counted)));
    found.set(name, known);
    return known as Promise<T>;
  }

  /** `focus`: the workspace whose traffic grows, among all others together; left out: that of all grows. */
  #scene(upstream: string, hour: Hour, focus?: string): Scene | null {
    const inForce = this.#source.inForce(upstream);
    if (inForce === null) return null;
    const total = hour.arrivals(upstream);
    const cell = hour.sum(upstream);
    const apart = focus === undefined ? lanesApart(inForce) : this.#lanesOf(focus, upstream, inForce);
    const keys = [...new Set(apart.map(({ bucket }) => bucket))];
    const workspaces = [...new Set(apart.map(({ workspaceId }) => workspaceId))];
    const lanes = apart.map((lane): ReplayedLane => {
      const own = inForce.lanes.filter(({ workspaceId }) => workspaceId === lane.workspaceId);
      const all = sum(own.map(({ calls }) => calls));
      const share = all === 0 ? 1 / Math.max(1, own.length) : lane.calls / all;
      const arrivals = hour.arrivals(this.#recorder.nameOf(lane.workspaceId, upstream));
      return {
        arrivals: arrivals.map((n) => n * share),
        ceiling: workspaces.indexOf(lane.workspaceId),
        bucket: keys.indexOf(lane.bucket),
        weight: lane.weight,
        perSecond: perSecondOf(lane, cell),
        grows: true,
      };
    });
    const ceilings = workspaces.map((workspaceId, at) => {
      const own = lanes.filter(({ ceiling }) => ceiling === at);
      return ceilingOf(
        apart.find((lane) => lane.workspaceId === workspaceId),
        sum(own.flatMap(({ arrivals }) => arrivals)),
      );
    });
    const buckets = (keys.length === 0 ? [null] : keys).map((key) =>
      windowsOf(key, inForce, cell, sum(total)),
    );
    return {
      lanes: [...lanes, ...restOf(total, lanes, focus === undefined)],
      ceilings,
      buckets,
      startsAt: Math.floor(hour.now / 1_000) - total.length + 1,
      maxWaitMs: inForce.maxWaitMs,
      maxQueued: inForce.maxQueued,
    };
  }

  /** The lanes of a workspace here, or one as configured where this replica has not seen it, in the bucket used most. */
  #lanesOf(workspaceId: string, upstream: string, { lanes }: InForce): readonly LaneInForce[] {
    const seen = lanes.filter((lane) => lane.workspaceId === workspaceId);
    const configured = this.#source.configured(workspaceId, upstream);
    if (seen.length > 0 || configured === null) return seen;
    const [fullest] = lanes.toSorted((a, b) => b.calls - a.calls);
    const bucket = fullest?.bucket ?? ('' as LaneInForce['bucket']);
    return [{ ...configured, workspaceId, bucket, calls: 1, used: { minute: 0, day: 0 } }];
  }
}

function lanesApart({ lanes }: InForce): readonly LaneInForce[] {
  const fullness = ({ used }: LaneInForce): number => Math.max(used.minute, used.day);
  const byCalls = lanes.toSorted((a, b) => b.calls - a.calls);
  const byCeiling = byCalls.toSorted((a, b) => fullness(b) - fullness(a));
  return [...new Set([...byCalls.slice(0, apartOfEach), ...byCeiling.slice(0, apartOfEach)])];
}

/** The traffic of all workspaces that are not replayed apart, over the buckets as the others use them. */
function restOf(total: readonly number[], lanes: readonly ReplayedLane[], grows: boolean): ReplayedLane[] {
  const rest = total.map((n, second) =>
    Math.max(0, n - sum(lanes.map(({ arrivals }) => arrivals[second] ?? 0))),
  );
  if (rest.every((n) => n < 1e-6)) return [];
  const calls = lanes.map(({ arrivals, bucket }) => ({ bucket, n: sum(arrivals) }));
  const all = sum(calls.map(({ n }) => n));
  // As many workspaces as would send it, if each sent as much as those that are replayed apart.
  const weight = all === 0 ? 1 : Math.max(1, (sum(rest) * lanes.length) / all);
  return [...new Set(lanes.length === 0 ? [0] : calls.map(({ bucket }) => bucket))].map(
    (bucket, _, { length }) => {
      const own = sum(calls.filter((each) => each.bucket === bucket).map(({ n }) => n));
      const share = all === 0 ? 1 / length : own / all;
      return { arrivals: rest.map((n) => n * share), ceiling: null, bucket, weight, perSecond: null, grows };
    },
  );
}

/** The meters of a bucket; of one that no call has used yet those that the configuration states. */
function windowsOf(
  key: LaneInForce['bucket'] | null,
  { buckets, stated }: InForce,
  cell: Cell,
  arrivals: number,
): readonly ReplayedWindow[] {
  const meters: readonly MeterSnapshot[] =
    buckets.find(({ bucket }) => bucket === key)?.meters ?? stated.map((each) => ({ ...each, level: 0 }));
  return meters.flatMap(({ meter, limit, windowMs, level, counts }): ReplayedWindow[] => {
    const kind = counts ?? 'leaky';
    // The unit that a meter counts: windows of several lengths count the same.
    const unit = countedUnits.find(
      (each) => meter === each || (meter.startsWith(`${each}_`) && !meter.endsWith('_tokens')),
    );
    if (unit === undefined) return [];
    const usedBefore = windowMs <= hourMs ? 0 : Math.max(0, level - cell.of(unit));
    const perCall = arrivals === 0 ? 1 : cell.of(unit) / arrivals;
    return [
      { limit: kind === 'rolling' ? limit / rollingMargin : limit, windowMs, kind, perCall, usedBefore },
    ];
  });
}

function ceilingOf(lane: LaneInForce | undefined, callsInHour: number): readonly ReplayedWindow[] {
  const { perMinute = null, perDay = null } = lane ?? {};
  const rolling = { kind: 'rolling', perCall: 1 } as const;
  const usedBefore = Math.max(0, (lane?.used.day ?? 0) * (perDay ?? 0) - callsInHour);
  return [
    ...(perMinute === null ? [] : [{ ...rolling, limit: perMinute, windowMs: 60_000, usedBefore: 0 }]),
    ...(perDay === null ? [] : [{ ...rolling, limit: perDay, windowMs: 24 * hourMs, usedBefore }]),
  ];
}

/** Calls a second that a cap on calls in flight lets through, by how long calls took. */
function perSecondOf({ maxInFlight }: LaneInForce, cell: Cell): number | null {
  const meanMs = cell.of('serviceSumMs') / cell.of('sent');
  return maxInFlight === null || !(meanMs >= 1) ? null : (maxInFlight * 1_000) / meanMs;
}
