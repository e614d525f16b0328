/**
 * How much more traffic fits: recorded arrivals replayed against ceilings and buckets, as they came and multiplied. Pure, but for `pause`:
 * a replay of an hour takes milliseconds, and between two of them calls may go on.
 *
 * Model: a fluid in steps of one second. A lane's calls leave in their order, as soon as the lane's own limits and its bucket all have room;
 * lanes that wait for one bucket share its room by weight. A call whose wait would pass `maxWaitMs`, and one that finds `maxQueued` others
 * waiting, is refused and takes no room, as Sluice does. Not modelled: priorities, the waits that single calls ask for, and whoever else
 * uses the quota.
 */
import { minuteMs, secondMs } from '../time-units.ts';

/** A limit of so many units in so much time. */
export interface ReplayedWindow {
  readonly limit: number;
  readonly windowMs: number;
  /** `leaky`: drains continuously. `rolling`: no stretch of this length holds more. `fixed`: begins anew at multiples of its length. */
  readonly kind: 'leaky' | 'rolling' | 'fixed';
  /** Units that one call takes, on average. */
  readonly perCall: number;
  /** Units used before the first second. */
  readonly usedBefore: number;
}

/** One workspace's calls to one bucket. Limits are shared by the lanes that have the same object. */
export interface ReplayedLane {
  /** Arrivals in each second, oldest first; the same seconds for all lanes. */
  readonly arrivals: readonly number[];
  /** What holds it beside the bucket: its ceiling, its cap on calls in flight. */
  readonly own: readonly ReplayedWindow[];
  readonly bucket: readonly ReplayedWindow[];
  readonly weight: number;
  /** False: its traffic stays as it was while the others' grows. */
  readonly grows: boolean;
}

export interface Scene {
  readonly lanes: readonly ReplayedLane[];
  /** The first second, since the Unix epoch: windows that the clock begins are known by it. */
  readonly startsAt: number;
  readonly maxWaitMs: number;
  readonly maxQueued: number;
}

/** Below this an amount of fluid is a rounding error. */
const tiny = 1e-9;

/** What calls of the lanes that grow would have met, if every second had brought `times` as many of them, under `limits` times the limits. */
export function replay({ lanes, startsAt, maxWaitMs, maxQueued }: Scene, times: number, limits = 1) {
  const maxWait = maxWaitMs / secondMs;
  const length = Math.max(0, ...lanes.map(({ arrivals }) => arrivals.length)) + Math.ceil(maxWait) + 2;
  const uses = new Map<ReplayedWindow, Use>();
  const usesOf = (windows: readonly ReplayedWindow[]) =>
    windows.map((window) => {
      const use = uses.get(window) ?? useOf(window, window.limit * limits, length);
      uses.set(window, use);
      return use;
    });
  const lines = lanes.map((lane) => lineOf(lane, [...usesOf(lane.own), ...usesOf(lane.bucket)], length));
  const buckets = [...Map.groupBy(lines, ({ lane }) => lane.bucket)].map(
    ([windows, own]) => [usesOf(windows), own] as const,
  );
  for (let second = 0; second < length; second++) {
    for (const use of uses.values()) advance(use, second, startsAt);
    for (const line of lines) arrive(line, second, line.lane.grows ? times : 1, maxWait);
    for (const [bucket, own] of buckets) share(own, bucket, second);
    // Who is still behind so many others when this second's calls are sent is refused.
    for (const line of lines) refuse(line, second, line.waiting - maxQueued);
  }
  const own = lines.filter(({ lane }) => lane.grows);
  const arrived = sum(own.map((line) => line.arrived));
  const refused = sum(own.map((line) => line.refused));
  return {
    /** Longest wait of a call that was sent, milliseconds, to the second. */
    longestWaitMs: Math.max(0, ...own.map((line) => line.longest)) * secondMs,
    /** Share of the calls that would be refused, 0 to 1. */
    refusedRatio: refused <= arrived * 1e-6 ? 0 : refused / arrived,
  };
}
export type Replay = Readonly<ReturnType<typeof replay>>;

/** Gives the room of one bucket to its waiting lanes by weight, until it is used or nobody can take more. */
function share(lines: readonly Line[], bucket: readonly Use[], second: number): void {
  for (let takers = lines.filter(({ waiting }) => waiting > tiny); takers.length > 0;) {
    const room = roomOf(bucket);
    const weights = sum(takers.map(({ lane }) => lane.weight));
    takers = takers.filter((line) => {
      const fair = (room * line.lane.weight) / weights;
      const part = Math.min(fair, line.waiting, roomOf(line.uses));
      if (part > tiny) send(line, part, second);
      return part > tiny && part >= fair - tiny && line.waiting > tiny;
    });
  }
}

/** What is used of a window as time goes on. `taken`: units, in each second. */
const useOf = (window: ReplayedWindow, limit: number, length: number) => {
  const seconds = Math.max(1, window.windowMs / secondMs);
  return { ...window, limit, seconds, taken: new Float64Array(length), used: window.usedBefore };
};
type Use = ReturnType<typeof useOf>;

function advance(use: Use, second: number, startsAt: number): void {
  const { kind, limit, seconds, taken } = use;
  if (kind === 'leaky') use.used = Math.max(0, use.used - limit / seconds);
  else if (kind === 'rolling') use.used -= taken[second - Math.ceil(seconds)] ?? 0;
  else if ((startsAt + second) % Math.round(seconds) === 0) use.used = 0;
}

/** Calls that all of these windows have room for. */
function roomOf(uses: readonly Use[]): number {
  let room = Infinity;
  for (const { perCall, limit, used } of uses)
    if (perCall > 0) room = Math.min(room, Math.max(0, limit - used) / perCall);
  return room;
}

/** The calls of a lane: those that wait by the second of their arrival, from `head` on. `longest`: seconds. */
const lineOf = (lane: ReplayedLane, uses: readonly Use[], length: number) => ({
  lane,
  uses,
  queued: new Float64Array(length),
  head: 0,
  waiting: 0,
  arrived: 0,
  refused: 0,
  longest: 0,
});
type Line = ReturnType<typeof lineOf>;

/** Calls of this second arrive; those that have waited too long are refused. */
function arrive(line: Line, second: number, times: number, maxWait: number): void {
  while (line.head < second - maxWait) refuse(line, line.head++, Infinity);
  const calls = (line.lane.arrivals[second] ?? 0) * times;
  line.arrived += calls;
  line.waiting += calls;
  line.queued[second] = calls;
}

function send(line: Line, calls: number, second: number): void {
  for (const use of line.uses) {
    use.used += calls * use.perCall;
    use.taken[second] = (use.taken[second] ?? 0) + calls * use.perCall;
  }
  for (let left = calls; left > tiny && line.head <= second;) {
    const part = take(line, line.head, left);
    left -= part;
    if (part > tiny) line.longest = Math.max(line.longest, second - line.head);
    if ((line.queued[line.head] ?? 0) <= tiny) line.head++;
  }
}

/** Refuses so many calls of a second, or all that are left of them. */
function refuse(line: Line, second: number, calls: number): void {
  if (calls > tiny) line.refused += take(line, second, calls);
}

function take(line: Line, second: number, calls: number): number {
  const queued = line.queued[second] ?? 0;
  const part = Math.min(calls, queued);
  line.queued[second] = queued - part;
  line.waiting -= part;
  return part;
}

type Pause = () => Promise<unknown>;

const maxGrowth = 10;
/** Calls are no fluid, and a second is no instant: what the replay says is reached but for this part. */
const safety = 0.96;

export type Headroom = Readonly<Awaited<ReturnType<typeof headroom>>>;

/** Replays a scene; traffic of the lanes that grow is `own`. `refused`: how many calls were refused in that hour. */
export async function headroom(scene: Scene, refused: number, pause: Pause) {
  const own = scene.lanes.filter(({ grows }) => grows).map(({ arrivals }) => arrivals);
  const busiestMinute = busiest(own[0]?.map((_, second) => sum(own.map((each) => each[second] ?? 0))) ?? []);
  const perMinute = tightestPerMinute(scene);
  const now = replay(scene, 1);
  await pause();
  const doubled = replay(scene, 2);
  await pause();
  const isKnown = perMinute !== null && busiestMinute > 0;
  return {
    /** Own arrivals in the busiest 60 consecutive seconds of the last hour. */
    busiestMinute,
    /** `busiestMinute` as a share of the tightest limit; `null` when nothing limits. May exceed 1. */
    usedRatio: perMinute === null ? null : busiestMinute / perMinute,
    now,
    doubled,
    /**
     * Largest multiple of the last hour's traffic at which no call is refused, to a hundredth: at most {@link maxGrowth}, 1 where any more
     * would be refused, 0 when calls were refused in that hour. `null` without traffic or limits.
     */
    growth: !isKnown ? null : refused > 0 ? 0 : await growth(scene, now, doubled, pause),
  };
}

/** Largest multiple at which nobody is refused, by halving; waits only grow with traffic. */
async function growth(scene: Scene, now: Replay, doubled: Replay, pause: Pause): Promise<number> {
  const fits = (times: number): boolean => replay(scene, times).refusedRatio === 0;
  if (now.refusedRatio > 0) return 1;
  let [low, high] = doubled.refusedRatio > 0 ? [1, 2] : [2, maxGrowth / safety];
  if (high > 2 && fits(high)) return maxGrowth;
  while (high - low > 0.01 * low) {
    const middle = (low + high) / 2;
    await pause();
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return Math.max(1, Math.floor(low * safety * 100) / 100);
}

const rehearsals = [
  ...[0.5, 1, 1.1, 1.25, 2].map((times) => ({ times, limits: 1 })),
  { times: 1, limits: 0.5 },
];

/** What would be met by so many times the traffic under so many times the limits; empty where nothing limits it. */
export async function rehearsed(scene: Scene, pause: Pause) {
  const found: ((typeof rehearsals)[number] & Replay)[] = [];
  for (const change of tightestPerMinute(scene) === null ? [] : rehearsals) {
    found.push({ ...change, ...replay(scene, change.times, change.limits) });
    await pause();
  }
  return found;
}

/** Calls a minute that the tightest limit of a lane that grows lets through; `null` = it has none. */
function tightestPerMinute({ lanes }: Scene): number | null {
  const perMinute = lanes
    .filter(({ grows }) => grows)
    .flatMap(({ own, bucket }) => [...own, ...bucket])
    .filter(({ perCall }) => perCall > 0)
    .map(({ limit, perCall, windowMs }) => ((limit / perCall) * minuteMs) / Math.min(minuteMs, windowMs));
  const tightest = Math.min(...perMinute);
  return Number.isFinite(tightest) && tightest > 0 ? tightest : null;
}

/** Largest sum of 60 consecutive seconds. */
export function busiest(perSecond: readonly number[]): number {
  let [minute, most] = [0, 0];
  for (const [i, n] of perSecond.entries()) {
    minute += n - (perSecond[i - 60] ?? 0);
    most = Math.max(most, minute);
  }
  return most;
}

export const sum = (numbers: readonly number[]): number => numbers.reduce((total, n) => total + n, 0);
