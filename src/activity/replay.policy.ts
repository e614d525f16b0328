/**
 * Replays arrivals per second against ceilings and buckets, and says how long calls would have waited. Pure.
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

/** What calls of the lanes that grow would have met. */
export interface Replay {
  /** Longest wait of a call that was sent, milliseconds, to the second. */
  readonly longestWaitMs: number;
  /** Share of the calls that would be refused, 0 to 1. */
  readonly refusedRatio: number;
}

/** Below this an amount of fluid is a rounding error. */
const tiny = 1e-9;

/** Waits when every second brings `factor` times the calls of the lanes that grow. */
export function replay(scene: Scene, factor: number): Replay {
  const { ceilings, buckets, startsAt, maxWaitMs } = scene;
  const maxWait = maxWaitMs / 1_000;
  const length = Math.max(0, ...scene.lanes.map(({ arrivals }) => arrivals.length));
  const first = Math.min(...scene.lanes.map(({ arrivals }) => firstOf(arrivals)));
  if (first >= length) return { longestWaitMs: 0, refusedRatio: 0 };
  const lanes = scene.lanes.map((lane) => new Line(lane, lane.grows ? factor : 1, scene.maxQueued));
  const span = { from: first, until: length + Math.ceil(maxWait) + 2, startsAt };
  const ceilingUses = ceilings.map((windows) => windows.map((window) => new Use(window, span)));
  const uses = buckets.map((windows, bucket) => ({
    windows: windows.map((window) => new Use(window, span)),
    lanes: lanes.filter(({ lane }) => lane.bucket === bucket),
  }));
  for (let second = span.from; second < span.until; second++) {
    for (const windows of ceilingUses) for (const use of windows) use.advance(second);
    for (const line of lanes) line.advance(second, maxWait - aloneSeconds(line.lane));
    for (const { windows, lanes: own } of uses) {
      for (const use of windows) use.advance(second);
      share(own, windows, ceilingUses, second);
    }
  }
  return resultOf(lanes.filter(({ lane }) => lane.grows));
}

/**
 * Under a cap calls leave one by one, each as long as it takes: how long the last one waits is known no closer than to a step and one
 * answer. The shorter calls may wait, the more that is.
 */
const aloneSeconds = ({ perSecond }: ReplayedLane): number => (perSecond === null ? 0 : 1 + 1 / perSecond);

const firstOf = (arrivals: readonly number[]): number => {
  const at = arrivals.findIndex((n) => n > 0);
  return at < 0 ? Infinity : at;
};

function resultOf(lanes: readonly Line[]): Replay {
  const sum = (of: (line: Line) => number): number => lanes.reduce((total, line) => total + of(line), 0);
  const arrived = sum((line) => line.arrived);
  const ratio = arrived === 0 ? 0 : sum((line) => line.refused) / arrived;
  return {
    longestWaitMs: Math.max(0, ...lanes.map((line) => line.longest)) * 1_000,
    refusedRatio: ratio < 1e-6 ? 0 : ratio,
  };
}

/** Gives the room of one bucket to its waiting lanes by weight, until it is used or nobody can take more. */
function share(
  lanes: readonly Line[],
  windows: readonly Use[],
  ceilings: readonly (readonly Use[])[],
  second: number,
): void {
  let takers: readonly Line[] = lanes;
  for (;;) {
    const room = roomOf(windows);
    let weights = 0;
    for (const line of takers) if (line.waiting > tiny) weights += line.lane.weight;
    if (weights === 0 || room <= tiny) return;
    const next: Line[] = [];
    for (const line of takers) {
      if (line.waiting <= tiny) continue;
      const fair = (room * line.lane.weight) / weights;
      const ceiling = ceilings[line.lane.ceiling ?? -1] ?? none;
      const part = Math.min(fair, line.waiting, line.cap, roomOf(ceiling), roomOf(windows));
      if (part <= tiny) continue;
      line.send(part, second);
      for (const use of windows) use.take(part, second);
      for (const use of ceiling) use.take(part, second);
      if (part >= fair - tiny && line.waiting > tiny) next.push(line);
    }
    if (next.length === 0) return;
    takers = next;
  }
}

const none: readonly Use[] = [];

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
  /** Units taken in each second; only where the window forgets them one by one. */
  readonly #taken: Float64Array | null;
  #used: number;

  constructor(window: ReplayedWindow, span: { readonly until: number; readonly startsAt: number }) {
    this.#window = window;
    this.#seconds = Math.max(1, window.windowMs / 1_000);
    this.#startsAt = span.startsAt;
    this.#taken = window.kind === 'rolling' ? new Float64Array(span.until) : null;
    this.#used = window.usedBefore;
  }

  advance(second: number): void {
    const { limit, kind } = this.#window;
    if (kind === 'leaky') this.#used = Math.max(0, this.#used - limit / this.#seconds);
    else if (kind === 'rolling') {
      const gone = second - Math.ceil(this.#seconds);
      if (gone >= 0) this.#used -= this.#taken?.[gone] ?? 0;
    } else if ((this.#startsAt + second) % Math.round(this.#seconds) === 0) this.#used = 0;
  }

  /** Calls that fit now. */
  room(): number {
    const { limit, perCall } = this.#window;
    return perCall <= 0 ? Infinity : Math.max(0, limit - this.#used) / perCall;
  }

  take(calls: number, second: number): void {
    const units = calls * this.#window.perCall;
    this.#used += units;
    if (this.#taken !== null) this.#taken[second] = (this.#taken[second] ?? 0) + units;
  }
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
  readonly #factor: number;
  readonly #maxQueued: number;
  readonly #queued: Float64Array;
  #head = 0;

  constructor(lane: ReplayedLane, factor: number, maxQueued: number) {
    this.lane = lane;
    this.#factor = factor;
    this.#maxQueued = maxQueued;
    this.#queued = new Float64Array(lane.arrivals.length);
  }

  /** Calls of this second arrive; those that have waited too long, or find the line full, are refused. */
  advance(second: number, maxWait: number): void {
    this.cap = this.lane.perSecond ?? Infinity;
    while (this.#head < second - maxWait) this.#refuse(this.#head++);
    const calls = (this.lane.arrivals[second] ?? 0) * this.#factor;
    if (calls <= 0) return;
    this.arrived += calls;
    this.#queued[second] = calls;
    this.waiting += calls;
  }

  send(calls: number, second: number): void {
    let left = calls;
    this.cap -= calls;
    this.waiting -= calls;
    while (left > tiny && this.#head <= second) {
      const queued = this.#queued[this.#head] ?? 0;
      const part = Math.min(left, queued);
      this.#queued[this.#head] = queued - part;
      left -= part;
      if (part > tiny) this.longest = Math.max(this.longest, second - this.#head);
      if (queued - part <= tiny) this.#head++;
    }
    // What is left after the sending of this second waits.
    const over = this.waiting - this.#maxQueued;
    if (over > tiny) this.#refuseNewest(over, second);
  }

  #refuse(second: number): void {
    const late = this.#queued[second] ?? 0;
    if (late <= tiny) return;
    this.#queued[second] = 0;
    this.waiting -= late;
    this.refused += late;
  }

  #refuseNewest(calls: number, second: number): void {
    let left = calls;
    for (let at = Math.min(second, this.#queued.length - 1); at >= this.#head && left > tiny; at--) {
      const part = Math.min(left, this.#queued[at] ?? 0);
      this.#queued[at] = (this.#queued[at] ?? 0) - part;
      left -= part;
      this.waiting -= part;
      this.refused += part;
    }
  }
}
