/**
 * How much more traffic fits, of an upstream and of each workspace on it: the arrivals of the last hour, replayed against the limits in
 * force (`headroom.policy.ts`). Owns which lanes are replayed apart: those with the fullest ceilings, of equals those with most calls.
 */
import { setImmediate } from 'node:timers/promises';
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import type { MeterSnapshot } from '../bucket.ts';
import type { Clock } from '../clock.ts';
import { dayMs, hourMs, minuteMs, secondMs } from '../time-units.ts';
import { countedUnits, type Cell } from './cell.policy.ts';
import {
  headroom,
  rehearsed,
  sum,
  type Headroom,
  type ReplayedLane,
  type ReplayedWindow,
  type Scene,
} from './headroom.policy.ts';
import type { Hour, Recorder } from './recorder.ts';
import type { InForce, LaneInForce } from './shape.ts';

/** The limits in force of an upstream, and where no call has met any, those of the configuration. `null`: there is no such upstream. */
export type LimitsSource = (upstream: string) => InForce | null;

/** How long a headroom is shown before it is reckoned again, milliseconds. */
const goodMs = 15_000;
/** Lanes of an upstream that are replayed one by one. */
const maxApart = 20;
/**
 * Limits are taken for so much lower: a call counts in a rolling window until the last moment at which its upstream may count it, about this
 * much longer (`meter.policy.ts`), and under a cap calls leave one by one.
 */
const margin = 1.03;

export function createHeadrooms(
  recorder: Pick<Recorder, 'hour' | 'nameOf'>,
  source: LimitsSource,
  clock: Pick<Clock, 'monotonic'>,
) {
  const known = new LRUCache<string, { readonly until: number; readonly found: Promise<unknown> }>(
    atMost(5_000),
  );

  async function once<T>(name: string, reckon: (hour: Hour) => Promise<T>): Promise<T> {
    const now = clock.monotonic();
    const last = known.get(name);
    if (last !== undefined && now < last.until) return last.found as Promise<T>;
    // Calls do not wait for many replays in a row.
    const found = recorder.hour().then(async (hour) => (await setImmediate(), reckon(hour)));
    known.set(name, { until: now + goodMs, found });
    return found;
  }

  /** Of the calls that were counted under a name. */
  const headroomOf = (name: string, upstream: string, focus?: string): Promise<Headroom | null> =>
    once(name, async (hour) => {
      const scene = sceneOf(upstream, hour, focus);
      return scene === null ? null : headroom(scene, hour.sum(name).refusedForRoom, setImmediate);
    });

  /** `focus`: the workspace whose traffic grows, among all others together; left out: that of all grows. */
  function sceneOf(upstream: string, hour: Hour, focus?: string): Scene | null {
    const inForce = source(upstream);
    if (inForce === null) return null;
    const total = hour.arrivals(upstream);
    const cell = hour.sum(upstream);
    const fullness = ({ used }: LaneInForce): number => Math.max(used.minute, used.day);
    const apart =
      focus === undefined
        ? inForce.lanes.toSorted((a, b) => fullness(b) - fullness(a) || b.calls - a.calls).slice(0, maxApart)
        : inForce.lanes.filter(({ workspaceId }) => workspaceId === focus);
    if (focus !== undefined && apart.length === 0) return null;
    const others = inForce.lanes.filter((lane) => !apart.includes(lane));
    const keys = [...new Set(inForce.lanes.map(({ bucket }) => bucket))];
    const buckets = new Map(keys.map((key) => [key, windowsOf(key, inForce, cell, sum(total))]));
    const callsOf = (lanes: readonly LaneInForce[]): number => sum(lanes.map(({ calls }) => calls));
    const lanes = [...Map.groupBy(apart, ({ workspaceId }) => workspaceId)].flatMap(([workspaceId, own]) => {
      const arrivals = hour.arrivals(recorder.nameOf(workspaceId, upstream));
      const all = callsOf(inForce.lanes.filter((lane) => lane.workspaceId === workspaceId));
      const ceiling = ceilingOf(own[0], sum(arrivals));
      return own.map((lane): ReplayedLane => {
        const share = all === 0 ? 1 / own.length : lane.calls / all;
        return {
          arrivals: arrivals.map((n) => n * share),
          own: [...ceiling, ...capOf(lane, cell)],
          bucket: buckets.get(lane.bucket) ?? [],
          weight: lane.weight,
          grows: true,
        };
      });
    });
    // The traffic of all others, also of other replicas', over the buckets as their lanes here use them.
    const rest = total.map((n, second) =>
      Math.max(0, n - sum(lanes.map(({ arrivals }) => arrivals[second] ?? 0))),
    );
    const using = Map.groupBy(others.length === 0 ? apart : others, ({ bucket }) => bucket);
    const restOf = (bucket: readonly ReplayedWindow[], part: number, weight: number): ReplayedLane => {
      const arrivals = rest.map((n) => n * part);
      return { arrivals, own: [], bucket, weight, grows: focus === undefined };
    };
    const all = callsOf([...using.values()].flat());
    const restLanes =
      using.size === 0
        ? [restOf(windowsOf(null, inForce, cell, sum(total)), 1, 1)]
        : Array.from(using, ([key, own]) =>
            restOf(buckets.get(key) ?? [], all === 0 ? 1 / using.size : callsOf(own) / all, own.length),
          );
    return {
      lanes: [...lanes, ...(sum(rest) < 1e-3 && lanes.length > 0 ? [] : restLanes)],
      startsAt: Math.floor(hour.now / secondMs) - total.length + 1,
      maxWaitMs: inForce.maxWaitMs,
      maxQueued: inForce.maxQueued,
    };
  }

  return {
    /** Of all workspaces together. `null`: there is no such upstream. */
    ofUpstream: (upstream: string) => headroomOf(upstream, upstream),
    /** Of one workspace, while the others' traffic stays as it is. `null`: this replica has met no limit of it. */
    ofLane: (workspaceId: string, upstream: string) =>
      headroomOf(recorder.nameOf(workspaceId, upstream), upstream, workspaceId),
    /** What some multiples of the traffic of all workspaces would meet. */
    rehearsed: (upstream: string) =>
      once(`rehearsed ${upstream}`, async (hour) => {
        const scene = sceneOf(upstream, hour);
        return scene === null ? [] : rehearsed(scene, setImmediate);
      }),
  };
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
    return [{ limit: kind === 'rolling' ? limit / margin : limit, windowMs, kind, perCall, usedBefore }];
  });
}

function ceilingOf(lane: LaneInForce | undefined, callsInHour: number): readonly ReplayedWindow[] {
  const { perMinute = null, perDay = null } = lane ?? {};
  const rolling = { kind: 'rolling', perCall: 1 } as const;
  const usedBefore = Math.max(0, (lane?.used.day ?? 0) * (perDay ?? 0) - callsInHour);
  return [
    ...(perMinute === null ? [] : [{ ...rolling, limit: perMinute, windowMs: minuteMs, usedBefore: 0 }]),
    ...(perDay === null ? [] : [{ ...rolling, limit: perDay, windowMs: dayMs, usedBefore }]),
  ];
}

/** Calls a second that a cap on calls in flight lets through, by how long calls took. */
function capOf({ maxInFlight }: LaneInForce, cell: Cell): readonly ReplayedWindow[] {
  const meanMs = cell.of('serviceSumMs') / cell.of('sent');
  if (maxInFlight === null || !(meanMs >= 1)) return [];
  const limit = (maxInFlight * secondMs) / meanMs / margin;
  return [{ kind: 'leaky', limit, windowMs: secondMs, perCall: 1, usedBefore: 0 }];
}
