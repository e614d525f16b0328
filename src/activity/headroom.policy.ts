/**
 * How much more traffic fits: recorded arrivals replayed against ceilings and buckets, as they came and multiplied. Pure, but for `pause`:
 * a replay of an hour takes milliseconds, and between two of them calls may go on.
 *
 * Model: a fluid in steps of one second. A lane's calls leave in their order, as soon as the lane's ceiling, its bucket and its cap
 * on calls in flight all have room; lanes that wait for one bucket share its room by weight. A call whose wait would pass `maxWaitMs`,
 * and one that finds `maxQueued` others waiting, is refused and takes no room, as Sluice does. Not modelled: priorities, the waits that
 * single calls ask for, and whoever else uses the quota.
 */

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

/** One workspace's calls to one bucket. */
export interface ReplayedLane {
  /** Arrivals in each second, oldest first; the same seconds for all lanes. */
  readonly arrivals: readonly number[];
  /** Indexes in the scene. `null`: no ceiling holds. */
  readonly ceiling: number | null;
  readonly bucket: number;
  readonly weight: number;
  /** Calls a second that its cap on calls in flight lets through; `null` = there is no cap. */
  readonly perSecond: number | null;
  /** False: its traffic stays as it was while the others' grows. */
  readonly grows: boolean;
}

export interface Scene {
  readonly lanes: readonly ReplayedLane[];
  readonly ceilings: readonly (readonly ReplayedWindow[])[];
  readonly buckets: readonly (readonly ReplayedWindow[])[];
  /** The first second, since the Unix epoch: windows that the clock begins are known by it. */
  readonly startsAt: number;
  readonly maxWaitMs: number;
  readonly maxQueued: number;
}

/** Below this an amount of fluid is a rounding error. */
const tiny = 1e-9;

/** What calls of the lanes that grow would have met, if every second had brought `factor` times as many of them. */
export function replay({ lanes: all, maxQueued, ...scene }: Scene, factor: number) {
  const maxWait = scene.maxWaitMs / 1_000;
  const length = Math.max(0, ...all.map(({ arrivals }) => arrivals.length)) + Math.ceil(maxWait) + 2;
  const lanes = all.map((lane) => new Line(lane, { factor: lane.grows ? factor : 1, maxQueued, length }));
  const usesOf = (each: readonly ReplayedWindow[]) =>
    each.map((window) => new Use(window, scene.startsAt, length));
  const [ceilings, buckets] = [scene.ceilings.map(usesOf), scene.buckets.map(usesOf)];
  const uses = [...ceilings, ...buckets].flat();
  for (let second = 0; second < length; second++) {
    for (const use of uses) use.advance(second);
    for (const line of lanes) line.advance(second, maxWait);
    for (const [at, windows] of buckets.entries()) {
      const waiting = lanes.filter(({ lane, waiting }) => lane.bucket === at && waiting > tiny);
      share(waiting, windows, ceilings, second);
    }
  }
  const own = lanes.filter(({ lane }) => lane.grows);
  const arrived = own.reduce((sum, line) => sum + line.arrived, 0);
  const refused = own.reduce((sum, line) => sum + line.refused, 0);
  return {
    /** Longest wait of a call that was sent, milliseconds, to the second. */
    longestWaitMs: Math.max(0, ...own.map((line) => line.longest)) * 1_000,
    /** Share of the calls that would be refused, 0 to 1. */
    refusedRatio: refused <= arrived * 1e-6 ? 0 : refused / arrived,
  };
}
export type Replay = Readonly<ReturnType<typeof replay>>;

/** Gives the room of one bucket to its waiting lanes by weight, until it is used or nobody can take more. */
function share(
  waiting: readonly Line[],
  windows: readonly Use[],
  ceilings: readonly (readonly Use[])[],
  second: number,
): void {
  for (let takers = waiting; takers.length > 0;) {
    const room = roomOf(windows);
    if (room <= tiny) break;
    const weights = takers.reduce((sum, { lane }) => sum + lane.weight, 0);
    takers = takers.filter((line) => {
      const ceiling = ceilings[line.lane.ceiling ?? -1] ?? [];
      const fair = (room * line.lane.weight) / weights;
      const part = Math.min(fair, line.waiting, line.cap, roomOf(ceiling), roomOf(windows));
      if (part <= tiny) return false;
      line.send(part, second);
      for (const use of windows) use.take(part, second);
      for (const use of ceiling) use.take(part, second);
      return part >= fair - tiny && line.waiting > tiny;
    });
  }
  // Who is still behind so many others when this second's calls are sent is refused.
  for (const line of waiting) line.refuseNewest(second);
}

/** Calls that all of these windows have room for. */
function roomOf(windows: readonly Use[]): number {
  let room = Infinity;
  for (const use of windows) room = Math.min(room, use.room());
  return room;
}

/** What is used of a window as time goes on. */
class Use {
  readonly #window: ReplayedWindow;
  readonly #seconds: number;
  readonly #startsAt: number;
  /** Units taken in each second. */
  readonly #taken: Float64Array;
  #used: number;

  constructor(window: ReplayedWindow, startsAt: number, length: number) {
    this.#taken = new Float64Array(length);
    this.#window = window;
    this.#seconds = Math.max(1, window.windowMs / 1_000);
    this.#startsAt = startsAt;
    this.#used = window.usedBefore;
  }

  advance(second: number): void {
    const { limit, kind } = this.#window;
    if (kind === 'leaky') this.#used = Math.max(0, this.#used - limit / this.#seconds);
    else if (kind === 'rolling') this.#used -= this.#taken[second - Math.ceil(this.#seconds)] ?? 0;
    else if ((this.#startsAt + second) % Math.round(this.#seconds) === 0) this.#used = 0;
  }

  /** Calls that fit now. */
  room(): number {
    const { limit, perCall } = this.#window;
    return perCall <= 0 ? Infinity : Math.max(0, limit - this.#used) / perCall;
  }

  take(calls: number, second: number): void {
    const units = calls * this.#window.perCall;
    this.#used += units;
    this.#taken[second] = (this.#taken[second] ?? 0) + units;
  }
}

interface LineSetting {
  readonly factor: number;
  readonly maxQueued: number;
  /** Seconds. */
  readonly length: number;
}

/** The calls of a lane that wait, by the second of their arrival. */
class Line {
  readonly lane: ReplayedLane;
  waiting = 0;
  /** Calls that its cap on calls in flight lets through in this second yet. */
  cap = Infinity;
  arrived = 0;
  refused = 0;
  /** Seconds. */
  longest = 0;
  readonly #of: LineSetting;
  readonly #queued: Float64Array;
  #head = 0;

  constructor(lane: ReplayedLane, of: LineSetting) {
    this.lane = lane;
    this.#of = of;
    this.#queued = new Float64Array(of.length);
  }

  /** Calls of this second arrive; those that have waited too long are refused. */
  advance(second: number, maxWait: number): void {
    const { perSecond, arrivals } = this.lane;
    this.cap = perSecond ?? Infinity;
    // Under a cap calls leave one by one: how long the last one waits is known no closer than to a step and one answer.
    const alone = perSecond === null ? 0 : 1 + 1 / perSecond;
    while (this.#head < second - (maxWait - alone)) this.#refuse(this.#head++, Infinity);
    const calls = (arrivals[second] ?? 0) * this.#of.factor;
    this.arrived += calls;
    this.waiting += calls;
    this.#queued[second] = calls;
  }

  send(calls: number, second: number): void {
    this.cap -= calls;
    for (let left = calls; left > tiny && this.#head <= second;) {
      const part = this.#take(this.#head, left);
      left -= part;
      if (part > tiny) this.longest = Math.max(this.longest, second - this.#head);
      if ((this.#queued[this.#head] ?? 0) <= tiny) this.#head++;
    }
  }

  refuseNewest(second: number): void {
    const { maxQueued } = this.#of;
    for (let at = second; at >= this.#head && this.waiting - maxQueued > tiny; at--)
      this.#refuse(at, this.waiting - maxQueued);
  }

  #refuse(second: number, calls: number): void {
    this.refused += this.#take(second, calls);
  }

  #take(second: number, calls: number): number {
    const queued = this.#queued[second] ?? 0;
    const part = Math.min(calls, queued);
    this.#queued[second] = queued - part;
    this.waiting -= part;
    return part;
  }
}

type Pause = () => Promise<void>;

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
  if (now.refusedRatio > 0) return 1;
  let [low, high] = doubled.refusedRatio > 0 ? [1, 2] : [2, maxGrowth / safety];
  if (high > 2 && replay(scene, high).refusedRatio === 0) return maxGrowth;
  while (high - low > 0.01 * low) {
    const middle = (low + high) / 2;
    await pause();
    if (replay(scene, middle).refusedRatio === 0) low = middle;
    else high = middle;
  }
  return Math.max(1, Math.floor(low * safety * 100) / 100);
}

/** A replay of the last hour's traffic so many times as dense, against so many times the limits in force. */
export interface Rehearsed extends Replay {
  readonly times: number;
  readonly limits: number;
}

const rehearsals = [
  ...[0.5, 1, 1.1, 1.25, 2].map((times) => ({ times, limits: 1 })),
  { times: 1, limits: 0.5 },
];

/** What would be met at some multiples of the traffic and of the limits; empty where nothing limits it. */
export async function rehearsed(scene: Scene, pause: Pause): Promise<readonly Rehearsed[]> {
  const found: Rehearsed[] = [];
  if (tightestPerMinute(scene) === null) return found;
  for (const { times, limits } of rehearsals) {
    const change = (all: Scene['buckets']): Scene['buckets'] =>
      all.map((windows) => windows.map((window) => ({ ...window, limit: window.limit * limits })));
    const changed = { ...scene, ceilings: change(scene.ceilings), buckets: change(scene.buckets) };
    found.push({ times, limits, ...replay(changed, times) });
    await pause();
  }
  return found;
}

/** Calls a minute that the tightest limit of a lane that grows lets through; `null` = it has none. */
function tightestPerMinute({ lanes, ceilings, buckets }: Scene): number | null {
  const windows = lanes
    .filter(({ grows }) => grows)
    .flatMap(({ ceiling, bucket }) => [...(ceilings[ceiling ?? -1] ?? []), ...(buckets[bucket] ?? [])]);
  const perMinute = windows
    .filter(({ perCall }) => perCall > 0)
    .map(({ limit, perCall, windowMs }) => ((limit / perCall) * 60_000) / Math.min(60_000, windowMs));
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
