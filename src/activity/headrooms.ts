/**
 * How much more traffic fits, of an upstream and of each workspace on it: the arrivals of the last hour, replayed against the limits in
 * force. Owns: which lanes are replayed apart, and the cache. Does not own: the replay (`headroom.policy.ts`), the limits.
 */
import type { Clock } from '../clock.ts';
import type { BucketSnapshot } from '../bucket.ts';
import { countedUnits, countOf, refusedIn, type Cell, type CountedUnit } from './cell.ts';
import { headroom, rehearsed, type Headroom, type InParts, type Rehearsed } from './headroom.policy.ts';
import type { ActivityLaneId, Recorder } from './recorder.ts';
import { Remembered } from './remembered.ts';
import type { ReplayedLane, ReplayedWindow, Scene } from './replay.policy.ts';
import type { InForce, LaneInForce } from './shape.ts';

/** The limits of upstreams. */
export interface LimitsSource {
  /** The limits in force, and where no call has met any, those of the configuration. `null`: there is no such upstream. */
  inForce(upstream: string): InForce | null;
  /** What holds a workspace's calls that this replica has not seen, as configured. */
  configured(id: ActivityLaneId): Omit<LaneInForce, 'workspaceId' | 'bucket' | 'calls' | 'used'> | null;
}

/** How long a headroom is shown before it is reckoned again: an hour's replay takes milliseconds, and ten of them are made. */
const goodMs = 15_000;
/** Lanes of an upstream that are replayed one by one: those with the fullest ceilings, and as many of those with most calls. */
const apartOfEach = 10;

/** What all replays of one upstream have in common. */
interface Base {
  readonly inForce: InForce;
  readonly total: readonly number[];
  readonly cell: Cell;
  /** Lanes replayed one by one, with their arrivals. */
  readonly apart: readonly { readonly lane: LaneInForce; readonly arrivals: readonly number[] }[];
  readonly until: number;
}

export class Headrooms {
  readonly #recorder: Recorder;
  readonly #source: LimitsSource;
  readonly #clock: Clock;
  readonly #bases: Remembered<Base | null>;
  readonly #found: Remembered<Headroom | null>;
  readonly #rehearsed: Remembered<readonly Rehearsed[]>;

  constructor(recorder: Recorder, source: LimitsSource, clock: Clock) {
    this.#recorder = recorder;
    this.#source = source;
    this.#clock = clock;
    this.#bases = new Remembered(clock, goodMs, 1_000);
    this.#found = new Remembered(clock, goodMs, 10_000);
    this.#rehearsed = new Remembered(clock, goodMs, 1_000);
  }

  /** Of all workspaces together. `null`: there is no such upstream. */
  ofUpstream(upstream: string): Promise<Headroom | null> {
    return this.#found.of(upstream, async () => {
      const base = await this.#base(upstream);
      if (base === null) return null;
      return this.#inParts(headroom(sceneOf(base, null), { refused: refusedIn(base.cell) }));
    });
  }

  /** What some multiples of the traffic of all workspaces would meet. */
  rehearsed(upstream: string): Promise<readonly Rehearsed[]> {
    return this.#rehearsed.of(upstream, async () => {
      const base = await this.#base(upstream);
      return base === null ? [] : this.#inParts(rehearsed(sceneOf(base, null)));
    });
  }

  /** Of one workspace, while the others' traffic stays as it is. */
  ofLane(id: ActivityLaneId): Promise<Headroom | null> {
    return this.#found.of(`${id.upstream} ${id.workspaceId}`, async () => {
      const base = await this.#base(id.upstream);
      if (base === null) return null;
      const known = base.apart.some(({ lane }) => lane.workspaceId === id.workspaceId);
      const focused = known ? base : await this.#with(id, base);
      const { counts } = await this.#recorder.sum(id, { minutes: 60 });
      const cell = { ...base.cell, counts };
      return this.#inParts(headroom(sceneOf(focused, id.workspaceId), { refused: refusedIn(cell) }));
    });
  }

  /** Resolves after other events have been handled, so that calls do not wait for many replays in a row. */
  yieldToCalls(): Promise<void> {
    return new Promise((resume) => void this.#clock.after(0, resume));
  }

  async #inParts<T>(parts: InParts<T>): Promise<T> {
    for (;;) {
      await this.yieldToCalls();
      const { done, value } = parts.next();
      if (done === true) return value;
    }
  }

  #base(upstream: string): Promise<Base | null> {
    return this.#bases.of(upstream, async () => {
      const inForce = this.#source.inForce(upstream);
      if (inForce === null) return null;
      const until = this.#clock.now();
      const total = await this.#recorder.arrivals({ upstream }, until);
      const cell = await this.#recorder.sum({ upstream }, { minutes: 60 });
      const byCalls = inForce.lanes.toSorted((a, b) => b.calls - a.calls);
      const byCeiling = byCalls.toSorted((a, b) => fullness(b) - fullness(a));
      const lanes = new Set([...byCalls.slice(0, apartOfEach), ...byCeiling.slice(0, apartOfEach)]);
      const apart: Base['apart'][number][] = [];
      for (const lane of lanes) apart.push(await this.#arrivalsOf(lane, { inForce, upstream, until }));
      return { inForce, total, cell, apart, until };
    });
  }

  async #arrivalsOf(
    lane: LaneInForce,
    { inForce, upstream, until }: Pick<Base, 'inForce' | 'until'> & { readonly upstream: string },
  ): Promise<Base['apart'][number]> {
    const own = inForce.lanes.filter(({ workspaceId }) => workspaceId === lane.workspaceId);
    const all = own.reduce((sum, { calls }) => sum + calls, 0);
    const share = all === 0 ? 1 / Math.max(1, own.length) : lane.calls / all;
    const arrivals = await this.#recorder.arrivals({ workspaceId: lane.workspaceId, upstream }, until);
    return { lane, arrivals: share === 1 ? arrivals : arrivals.map((n) => n * share) };
  }

  /** With a workspace that is not replayed apart for others: its lanes here, or one as configured where this replica has not seen it. */
  async #with(id: ActivityLaneId, base: Base): Promise<Base> {
    const { inForce, until } = base;
    const seen = inForce.lanes.filter(({ workspaceId }) => workspaceId === id.workspaceId);
    const configured = this.#source.configured(id);
    const [fullest] = inForce.lanes.toSorted((a, b) => b.calls - a.calls);
    const lanes: readonly LaneInForce[] =
      seen.length > 0 || configured === null
        ? seen
        : [{ ...configured, ...id, ...unseen, bucket: fullest?.bucket ?? unseen.bucket }];
    const own = lanes.length === seen.length ? inForce : { ...inForce, lanes: [...inForce.lanes, ...lanes] };
    const more: Base['apart'][number][] = [];
    for (const lane of lanes)
      more.push(await this.#arrivalsOf(lane, { inForce: own, upstream: id.upstream, until }));
    return { ...base, apart: [...base.apart, ...more] };
  }
}

const unseen = { bucket: '' as LaneInForce['bucket'], calls: 1, used: { minute: 0, day: 0 } };

const fullness = ({ used }: LaneInForce): number => Math.max(used.minute, used.day);

/** `focus`: the workspace whose traffic grows, among all others together; `null` = that of all grows. */
function sceneOf(base: Base, focus: string | null): Scene {
  const { inForce, total, cell, until } = base;
  const apart = focus === null ? base.apart : base.apart.filter(({ lane }) => lane.workspaceId === focus);
  const units = unitsPerCall(cell, total);
  const keys = [...new Set(apart.map(({ lane }) => lane.bucket))];
  if (keys.length === 0) keys.push(unseen.bucket);
  const known = new Map(inForce.buckets.map((each) => [each.bucket, each]));
  const buckets = keys.map((key) => windowsOf(known.get(key) ?? null, { inForce, cell, units }));
  const workspaces = [...new Set(apart.map(({ lane }) => lane.workspaceId))];
  const ceilings = workspaces.map((id) => ceilingOf(apart.filter(({ lane }) => lane.workspaceId === id)));
  const lanes = apart.map(({ lane, arrivals }): ReplayedLane => {
    const own = lane.workspaceId;
    return {
      arrivals,
      ceiling: workspaces.indexOf(own),
      bucket: keys.indexOf(lane.bucket),
      weight: lane.weight,
      perSecond: perSecondOf(lane, cell),
      grows: true,
    };
  });
  return {
    lanes: [...lanes, ...restOf(total, lanes, focus === null)],
    ceilings,
    buckets,
    startsAt: Math.floor(until / 1_000) - total.length + 1,
    maxWaitMs: inForce.maxWaitMs,
    maxQueued: inForce.maxQueued,
  };
}

const sumOf = (numbers: readonly number[]): number => numbers.reduce((sum, n) => sum + n, 0);

/** The traffic of all workspaces that are not replayed apart, over the buckets as the others use them. */
function restOf(total: readonly number[], lanes: readonly ReplayedLane[], grows: boolean): ReplayedLane[] {
  const rest = total.map((n, second) =>
    Math.max(
      0,
      lanes.reduce((left, { arrivals }) => left - (arrivals[second] ?? 0), n),
    ),
  );
  if (rest.every((n) => n < 1e-6)) return [];
  const calls = lanes.map(({ arrivals }) => sumOf(arrivals));
  const all = sumOf(calls);
  const shares = new Map<number, number>();
  for (const [at, { bucket }] of lanes.entries())
    shares.set(bucket, (shares.get(bucket) ?? 0) + (all === 0 ? 1 / lanes.length : (calls[at] ?? 0) / all));
  if (shares.size === 0) shares.set(0, 1);
  // As many workspaces as would send it, if each sent as much as those that are replayed apart.
  const weight = all === 0 ? 1 : Math.max(1, (sumOf(rest) * lanes.length) / all);
  return [...shares].map(([bucket, share]) => ({
    arrivals: rest.map((n) => n * share),
    ceiling: null,
    bucket,
    weight,
    perSecond: null,
    grows,
  }));
}

const hourMs = 3_600_000;

/** Units that one call took on average, by meter. */
type UnitsPerCall = ReadonlyMap<CountedUnit, number>;

function unitsPerCall(cell: Cell, total: readonly number[]): UnitsPerCall {
  const arrivals = total.reduce((sum, n) => sum + n, 0);
  return new Map(countedUnits.map((unit) => [unit, arrivals === 0 ? 1 : countOf(cell, unit) / arrivals]));
}

/** The unit that a meter counts: windows of several lengths count the same. */
const unitOf = (meter: string): CountedUnit | null =>
  countedUnits.find(
    (unit) => meter === unit || (meter.startsWith(`${unit}_`) && !meter.endsWith('_tokens')),
  ) ?? null;

/** A call counts in a rolling window until the last moment at which its upstream may count it, about this much longer (`window-log.policy.ts`): as if the limit were as much lower. */
const rollingMargin = 1.03;

function windowsOf(
  bucket: BucketSnapshot | null,
  { inForce, cell, units }: { readonly inForce: InForce; readonly cell: Cell; readonly units: UnitsPerCall },
): readonly ReplayedWindow[] {
  const meters = bucket?.meters ?? inForce.stated.map((each) => ({ ...each, level: 0 }));
  return meters.flatMap(({ meter, limit, windowMs, level, counts }) => {
    const unit = unitOf(meter);
    if (unit === null) return [];
    const usedBefore = windowMs <= hourMs ? 0 : Math.max(0, level - countOf(cell, unit));
    const kind = counts ?? 'leaky';
    const holds = kind === 'rolling' ? limit / rollingMargin : limit;
    return { limit: holds, windowMs, kind, perCall: units.get(unit) ?? 1, usedBefore };
  });
}

function ceilingOf(own: Base['apart']): readonly ReplayedWindow[] {
  const windows: ReplayedWindow[] = [];
  const [first] = own;
  if (first === undefined) return windows;
  const { perMinute, perDay, used } = first.lane;
  const rolling = { kind: 'rolling', perCall: 1 } as const;
  if (perMinute !== null) windows.push({ ...rolling, limit: perMinute, windowMs: 60_000, usedBefore: 0 });
  if (perDay !== null) {
    const inHour = own.reduce((sum, { arrivals }) => sum + arrivals.reduce((all, n) => all + n, 0), 0);
    const usedBefore = Math.max(0, used.day * perDay - inHour);
    windows.push({ ...rolling, limit: perDay, windowMs: 24 * hourMs, usedBefore });
  }
  return windows;
}

/** Calls a second that a cap on calls in flight lets through, by how long calls took. */
function perSecondOf({ maxInFlight }: LaneInForce, cell: Cell): number | null {
  const sent = countOf(cell, 'sent');
  if (maxInFlight === null || sent === 0) return null;
  const meanMs = countOf(cell, 'serviceSumMs') / sent;
  return meanMs < 1 ? null : (maxInFlight * 1_000) / meanMs;
}
