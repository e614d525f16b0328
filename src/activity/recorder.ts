/**
 * Remembers the last hour of workspaces on their upstreams, minute by minute. Owns how a fact is counted, the sums over
 * replicas and what is published to the other replicas; does not own limits, labels, and which lanes are forgotten when
 * there are too many (`LaneTable`).
 *
 * A fact is counted in the lane of its workspace and in the total of its upstream. A lane may be forgotten, a total never is: whichever
 * workspaces are shown, their rows and the rest of the total are together all calls.
 *
 * Bound: `maxLanes` lanes and two totals per upstream, an hour each. Workspace ids stay in this process's
 * memory; what leaves it goes under a digest.
 */
import type { Costs } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { EndedFact, FactSink } from '../telemetry/events.ts';
import { decayed } from '../telemetry/labels.ts';
import {
  addArrival,
  addCount,
  addEnd,
  addInto,
  arrivalsPerSecond,
  emptyCell,
  keptMinutes,
  minuteMs,
  Minutes,
  type Cell,
  type CellField,
} from './cell.ts';
import type { ActivityKey, LaneCalls, LaneCell, Publication, SharedActivity } from './shared.ts';

/** How many forgotten lanes are published nevertheless, because they have waiting calls or calls in flight. */
const maxLiveForgotten = 1_000;
/** Workspaces published as the busiest: more than there are labels, so that all replicas agree on who gets one. */
const maxBusiest = 200;
/** Stands for a label in the digest of a total. No label is named so. */
const nameOfTotal = 'everybody';

const oneRequest: Costs = { requests: 1 };

/** Names a lane by workspace and upstream. Stays in this process. */
export interface ActivityLaneId {
  readonly workspaceId: string;
  readonly upstream: string;
}

/** The last hour of a workspace on an upstream. Not a lane of a bucket: buckets of the same upstream count together here. */
interface ActivityLane extends ActivityLaneId {
  readonly minutes: Minutes;
  /** The minutes of all workspaces together, which count the same facts. */
  readonly total: Minutes;
  /** Calls ended, decayed (`telemetry/labels.ts`) to the minute `busyAt`. */
  busy: number;
  busyAt: number;
}

/** How busy a lane is at a minute: its ended calls, decayed to that minute. */
const busyIn = (lane: Pick<ActivityLane, 'busy' | 'busyAt'>, minute: number): number =>
  decayed(lane.busy, lane.busyAt, minute);

/**
 * Whose calls are meant: those of a workspace on an upstream, those under a label whose workspace has not called here, or those of
 * everybody on the upstream, also of workspaces whose lanes were forgotten.
 */
export type CountedId =
  ActivityLaneId | { readonly label: string; readonly upstream: string } | { readonly upstream: string };

export interface RecorderOptions {
  readonly clock: Clock;
  readonly shared: SharedActivity;
  /** Digest for the shared store: of a workspace's label, or the name of a total, and an upstream. */
  readonly keyOf: (label: string, upstream: string) => ActivityKey;
  /** Label of a workspace, under which its load is published to the other replicas. */
  readonly labelOf: (workspaceId: string) => string;
  /** True while the workspace is shown under a label of its own: it keeps its lanes. Default: never. */
  readonly isShown?: (workspaceId: string) => boolean;
  /** Lanes of this replica with calls that wait or are in flight now. */
  readonly live?: () => Iterable<ActivityLaneId & LaneCalls>;
  /** Lanes remembered. At least 2; default 1,000. */
  readonly maxLanes?: number;
}

/** Cells that are being published. */
interface Taken {
  readonly minutes: Minutes;
  readonly cells: readonly Cell[];
}

/** The time that a sum covers, and how fresh it must be. */
export interface Span {
  /** The last minutes (1 to 60), and the running one. */
  readonly minutes: number;
  /** What other replicas published is read no earlier than this, monotonic milliseconds; default: a few seconds ago. */
  readonly readSince?: number;
}

export class Recorder implements FactSink {
  readonly #options: RecorderOptions;
  readonly #maxLanes: number;
  readonly #isShown: (workspaceId: string) => boolean;
  readonly #lanes: LaneTable;
  readonly #totals = new Map<string, Minutes>();

  constructor(options: RecorderOptions) {
    this.#options = options;
    this.#maxLanes = options.maxLanes ?? 1_000;
    this.#isShown = options.isShown ?? (() => false);
    this.#lanes = new LaneTable(this.#maxLanes, this.#isShown);
  }

  /** How many lanes are remembered now. */
  get laneCount(): number {
    return this.#lanes.size;
  }

  arrived(workspaceId: string, upstream: string, costs: Costs = oneRequest): void {
    const now = this.#options.clock.now();
    const second = Math.floor((now % minuteMs) / 1_000);
    const minute = Math.floor(now / minuteMs);
    const lane = this.#lane(workspaceId, upstream, minute);
    addArrival(this.#own(lane, minute), second, costs);
    addArrival(inTotal(lane, minute), second, costs);
  }

  throttled(workspaceId: string, upstream: string, kind: 'rate' | 'permanent'): void {
    this.#count(workspaceId, upstream, kind === 'rate' ? 'throttledRate' : 'throttledPermanent');
  }

  absorbed(workspaceId: string, upstream: string): void {
    this.#count(workspaceId, upstream, 'absorbed');
  }

  ended(workspaceId: string, upstream: string, fact: EndedFact): void {
    const minute = this.#minute();
    const lane = this.#lane(workspaceId, upstream, minute);
    addEnd(this.#own(lane, minute), fact);
    addEnd(inTotal(lane, minute), fact);
    lane.busy += 1;
  }

  /** What was counted, all replicas. */
  async sum(id: CountedId, { minutes, readSince }: Span): Promise<Cell> {
    const from = this.#minute() - minutes;
    const sum = emptyCell(from);
    for (const cell of await this.#cells(id, from, readSince)) addInto(sum, cell);
    return sum;
  }

  /** The same minute by minute: the last `minutes`, the running one last. */
  async byMinute(id: CountedId, minutes: number): Promise<readonly Cell[]> {
    const from = this.#minute() - minutes + 1;
    const sums = Array.from({ length: minutes }, (_, at) => emptyCell(from + at));
    for (const cell of await this.#cells(id, from)) {
      const sum = sums[cell.minute - from];
      if (sum !== undefined) addInto(sum, cell);
    }
    return sums;
  }

  /** Arrivals per second over the last hour, oldest first, all replicas; up to `until` (wall clock, default now). */
  async arrivals(id: CountedId, until: number = this.#options.clock.now()): Promise<readonly number[]> {
    const from = Math.floor(until / minuteMs) - (keptMinutes - 1);
    return arrivalsPerSecond(await this.#cells(id, from), from, until);
  }

  /** Upstreams with anything recorded on this replica since it started. */
  upstreams(): Iterable<string> {
    return this.#totals.keys();
  }

  /** Each workspace with a lane on this replica, and how busy that workspace is here (`telemetry/labels.ts`). */
  busiest(): ReadonlyMap<string, number> {
    const minute = this.#minute();
    const found = new Map<string, number>();
    for (const lane of this.#lanes.values()) {
      found.set(lane.workspaceId, (found.get(lane.workspaceId) ?? 0) + busyIn(lane, minute));
    }
    return found;
  }

  /** The lanes among `ids` for which any replica recorded anything in the last `minutes` minutes. */
  async active<Id extends ActivityLaneId>(ids: readonly Id[], minutes: number): Promise<readonly Id[]> {
    const from = this.#minute() - minutes;
    const elsewhere = await this.#options.shared.active(from);
    return ids.filter((id) => {
      const own = this.#lanes.find(id.workspaceId, id.upstream)?.minutes.since(from) ?? [];
      return own.length > 0 || (elsewhere.size > 0 && elsewhere.has(this.#keyOf(id)));
    });
  }

  /** Calls that wait or are in flight, on all replicas. The counts of other replicas are a few seconds old. */
  async calls(id: ActivityLaneId | { readonly upstream: string }): Promise<LaneCalls> {
    const { shared, live } = this.#options;
    let { waiting, inFlight } = await shared.callsOf(this.#keyOf(id));
    for (const own of live?.() ?? []) {
      if (own.upstream !== id.upstream) continue;
      if ('workspaceId' in id && own.workspaceId !== id.workspaceId) continue;
      waiting += own.waiting;
      inFlight += own.inFlight;
    }
    return { waiting, inFlight };
  }

  /**
   * Publishes to the other replicas what changed, also what could not be stored the last time; called every few seconds, also when
   * nothing did.
   */
  async publish(): Promise<void> {
    const taken: Taken[] = [];
    const isStored = await this.#options.shared.publish(() => this.#publication(taken));
    if (!isStored) for (const { minutes, cells } of taken) minutes.publishAgain(cells);
  }

  #publication(taken: Taken[]): Publication {
    const changedIn = (minutes: Minutes): LaneCell[] => {
      const cells = minutes.takeChanged();
      taken.push({ minutes, cells });
      return cells.map((cell) => ({ lane: minutes.key, cell }));
    };
    const totals = [...this.#totals.values()].flatMap(changedIn);
    // Of every lane while there is room for all, of those that are shown by label when there is not.
    const hasRoom = this.#lanes.size < this.#maxLanes;
    const lanes = Array.from(this.#lanes.values(), (lane) =>
      hasRoom || this.#isShown(lane.workspaceId) ? changedIn(lane.minutes) : [],
    ).flat();
    return { totals, lanes, calls: this.#liveCalls(), busiest: this.#busiestByLabel() };
  }

  /**
   * Calls of this replica that wait or are in flight: by lane, for remembered lanes and up to {@link maxLiveForgotten} others; and for
   * each upstream those of all workspaces together, under the key of its total: a store keeps live calls apart from cells.
   */
  #liveCalls(): ReadonlyMap<ActivityKey, LaneCalls> {
    const calls = new Map<ActivityKey, LaneCalls>();
    let forgotten = 0;
    for (const { workspaceId, upstream, waiting, inFlight } of this.#options.live?.() ?? []) {
      if (waiting + inFlight === 0) continue;
      const all = this.#keyOf({ upstream });
      const sum = calls.get(all) ?? { waiting: 0, inFlight: 0 };
      calls.set(all, { waiting: waiting + sum.waiting, inFlight: inFlight + sum.inFlight });
      const isKnown = this.#lanes.find(workspaceId, upstream) !== undefined;
      if (!isKnown && ++forgotten > maxLiveForgotten) continue;
      calls.set(this.#keyOf({ workspaceId, upstream }), { waiting, inFlight });
    }
    return calls;
  }

  #busiestByLabel(): ReadonlyMap<string, number> {
    const ranked = [...this.busiest()].filter(([, busy]) => busy > 0).sort(([, a], [, b]) => b - a);
    return new Map(ranked.slice(0, maxBusiest).map(([id, busy]) => [this.#options.labelOf(id), busy]));
  }

  #minute(): number {
    return Math.floor(this.#options.clock.now() / minuteMs);
  }

  /** Cells of all replicas. */
  async #cells(id: CountedId, from: number, readSince?: number): Promise<readonly Cell[]> {
    const others = await this.#options.shared.others(this.#keyOf(id), from, readSince);
    return [...(this.#kept(id)?.since(from) ?? []), ...others];
  }

  /** What this replica has counted. Asking does not make a lane, nor keep one from being forgotten. */
  #kept(id: CountedId): Minutes | undefined {
    if ('workspaceId' in id) return this.#lanes.find(id.workspaceId, id.upstream)?.minutes;
    return 'label' in id ? undefined : this.#totals.get(id.upstream);
  }

  #keyOf(id: CountedId): ActivityKey {
    const known = this.#kept(id);
    if (known !== undefined) return known.key;
    const { keyOf, labelOf } = this.#options;
    if ('workspaceId' in id) return keyOf(labelOf(id.workspaceId), id.upstream);
    return keyOf('label' in id ? id.label : nameOfTotal, id.upstream);
  }

  #lane(workspaceId: string, upstream: string, minute: number): ActivityLane {
    const known = this.#lanes.find(workspaceId, upstream);
    if (known !== undefined) return known;
    const { keyOf, labelOf } = this.#options;
    const minutes = new Minutes(() => keyOf(labelOf(workspaceId), upstream));
    let total = this.#totals.get(upstream);
    if (total === undefined) {
      total = new Minutes(() => keyOf(nameOfTotal, upstream));
      this.#totals.set(upstream, total);
    }
    const lane = { workspaceId, upstream, minutes, total, busy: 0, busyAt: minute };
    this.#lanes.add(lane);
    return lane;
  }

  /** The lane's own cell of the minute. */
  #own(lane: ActivityLane, minute: number): Cell {
    const running = lane.minutes.running(minute);
    // Which lane was used last is of interest when one has to go; otherwise once a minute, or once after each publication, will do.
    if (running === null || this.#lanes.size >= this.#maxLanes) this.#lanes.touch(lane);
    if (running !== null) return running;
    lane.busy = busyIn(lane, minute);
    lane.busyAt = Math.max(lane.busyAt, minute);
    return lane.minutes.begin(minute);
  }

  #count(workspaceId: string, upstream: string, field: CellField): void {
    const minute = this.#minute();
    const lane = this.#lane(workspaceId, upstream, minute);
    addCount(this.#own(lane, minute), field);
    addCount(inTotal(lane, minute), field);
  }
}

/** The cell of the minute in which facts of all workspaces of the upstream are counted together. */
const inTotal = ({ total }: ActivityLane, minute: number): Cell =>
  total.running(minute) ?? total.begin(minute);

/**
 * A bounded table of lanes. The one unused for longest is evicted; lanes of workspaces that are shown under a label of their own only
 * when there are no others.
 */
class LaneTable {
  readonly #max: number;
  readonly #isShown: (workspaceId: string) => boolean;
  /** By upstream, then by workspace. Every call asks twice, and a joined name would be created each time. */
  readonly #byUpstream = new Map<string, Map<string, ActivityLane>>();
  /** The lane unused for longest first. */
  readonly #order = new Set<ActivityLane>();

  /** `isShown`: true while the workspace is shown under a label of its own. */
  constructor(max: number, isShown: (workspaceId: string) => boolean) {
    this.#max = max;
    this.#isShown = isShown;
  }

  get size(): number {
    return this.#order.size;
  }

  find(workspaceId: string, upstream: string): ActivityLane | undefined {
    return this.#byUpstream.get(upstream)?.get(workspaceId);
  }

  /** All lanes, the one unused for longest first. */
  values(): Iterable<ActivityLane> {
    return this.#order;
  }

  /** Adds a lane that is not in the table. */
  add(lane: ActivityLane): void {
    if (this.#order.size >= this.#max) this.#makeRoom();
    this.#order.add(lane);
    let own = this.#byUpstream.get(lane.upstream);
    if (own === undefined) this.#byUpstream.set(lane.upstream, (own = new Map()));
    own.set(lane.workspaceId, lane);
  }

  /** Makes the lane the one used last. */
  touch(lane: ActivityLane): void {
    if (this.#order.delete(lane)) this.#order.add(lane);
  }

  #makeRoom(): void {
    let tries = this.#order.size;
    for (const lane of this.#order) {
      tries -= 1;
      if (tries > 0 && this.#isShown(lane.workspaceId)) this.touch(lane);
      else {
        this.#order.delete(lane);
        this.#byUpstream.get(lane.upstream)?.delete(lane.workspaceId);
        return;
      }
    }
  }
}
