/** How much more traffic fits: recorded arrivals replayed against the limits in force, as they came and multiplied. Pure. */
import { replay, type Replay, type Scene } from './replay.policy.ts';

export interface Headroom {
  /** Own arrivals in the busiest 60 consecutive seconds of the last hour. */
  readonly busiestMinute: number;
  /** `busiestMinute` as a share of the tightest limit; `null` when nothing limits. May exceed 1. */
  readonly usedRatio: number | null;
  readonly now: Replay;
  readonly doubled: Replay;
  /**
   * Largest multiple of the last hour's traffic at which no call is refused, to a hundredth: at most {@link maxGrowth}, 1 where any more
   * would be refused, 0 when calls were refused in that hour. `null` without traffic or limits.
   */
  readonly growth: number | null;
}

/** A replay of the last hour's traffic so many times as dense, against so many times the limits in force. */
export interface Rehearsed extends Replay {
  readonly times: number;
  readonly limits: number;
}

const rehearsals: readonly Omit<Rehearsed, keyof Replay>[] = [
  ...[0.5, 1, 1.1, 1.25, 2].map((times) => ({ times, limits: 1 })),
  { times: 1, limits: 0.5 },
];

/** Work in parts of some milliseconds: between two of them calls may go on. */
export type InParts<T> = Generator<undefined, T>;

/** What would be met at some multiples of the traffic and of the limits; empty where nothing limits it. */
export function* rehearsed(scene: Scene): InParts<readonly Rehearsed[]> {
  const found: Rehearsed[] = [];
  if (tightestPerMinute(scene) === null) return found;
  for (const { times, limits } of rehearsals) {
    found.push({ times, limits, ...replay(withLimits(scene, limits), times) });
    yield;
  }
  return found;
}

/** With so many times the limits. */
function withLimits(scene: Scene, times: number): Scene {
  const change = (all: Scene['buckets']): Scene['buckets'] =>
    all.map((windows) => windows.map((window) => ({ ...window, limit: window.limit * times })));
  return { ...scene, ceilings: change(scene.ceilings), buckets: change(scene.buckets) };
}

/** What was counted in the hour whose arrivals are replayed. */
export interface Met {
  /** Calls that were refused for lack of room or time, and throttled responses that reached clients. */
  readonly refused: number;
}

const maxGrowth = 10;

/** Calls are no fluid, and a second is no instant: what the replay says is reached but for this part. */
const safety = 0.96;

/** Replays the arrivals of a scene; those of the lanes that grow are `own`. */
export function* headroom(scene: Scene, { refused }: Met): InParts<Headroom> {
  const own = summed(scene.lanes.filter(({ grows }) => grows).map(({ arrivals }) => arrivals));
  const busiestMinute = busiest(own);
  const perMinute = tightestPerMinute(scene);
  const isKnown = perMinute !== null && busiestMinute > 0;
  const now = replay(scene, 1);
  yield;
  const doubled = replay(scene, 2);
  yield;
  return {
    busiestMinute,
    usedRatio: perMinute === null ? null : busiestMinute / perMinute,
    now,
    doubled,
    growth: !isKnown ? null : refused > 0 ? 0 : yield* growth(scene, now, doubled),
  };
}

/** The sum, second by second. */
function summed(each: readonly (readonly number[])[]): readonly number[] {
  const sums: number[] = [];
  for (const arrivals of each)
    for (const [second, n] of arrivals.entries()) sums[second] = (sums[second] ?? 0) + n;
  return sums;
}

/** Calls a minute that the tightest limit of a lane that grows lets through; `null` = it has none. */
function tightestPerMinute({ lanes, ceilings, buckets }: Scene): number | null {
  let found = Infinity;
  for (const { grows, ceiling, bucket } of lanes) {
    if (!grows) continue;
    const windows = [...(ceilings[ceiling ?? -1] ?? []), ...(buckets[bucket] ?? [])];
    for (const { limit, windowMs, perCall } of windows)
      if (perCall > 0) found = Math.min(found, ((limit / perCall) * 60_000) / Math.min(60_000, windowMs));
  }
  return Number.isFinite(found) && found > 0 ? found : null;
}

/** Largest sum of 60 consecutive seconds. */
export function busiest(perSecond: readonly number[]): number {
  let [sum, most] = [0, 0];
  for (const [i, n] of perSecond.entries()) {
    sum += n;
    if (i >= 60) sum -= perSecond[i - 60] ?? 0;
    most = Math.max(most, sum);
  }
  return most;
}

/** Largest multiple at which nobody is refused, by halving; waits only grow with traffic. */
function* growth(scene: Scene, now: Replay, doubled: Replay): InParts<number> {
  if (now.refusedRatio > 0) return 1;
  let [low, high] = doubled.refusedRatio > 0 ? [1, 2] : [2, maxGrowth / safety];
  if (high > 2) {
    if (replay(scene, high).refusedRatio === 0) return maxGrowth;
    yield;
  }
  while (high - low > 0.01 * low) {
    const middle = (low + high) / 2;
    if (replay(scene, middle).refusedRatio === 0) low = middle;
    else high = middle;
    yield;
  }
  return Math.max(1, Math.floor(low * safety * 100) / 100);
}
