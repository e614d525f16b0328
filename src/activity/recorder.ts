/**
 * Remembers the last hour of workspaces on their upstreams, minute by minute. Owns how a fact is counted, the sums over
 * replicas and what is published to the other replicas; does not own limits, labels, and which lanes are forgotten when
 * there are too many (`counts.ts`).
 *
 * Bound: `maxLanes` lanes and two totals per upstream, an hour each (`minutes.ts`). Workspace ids stay in this process's
 * memory; what leaves it goes under a digest.
 */
import type { Clock } from '../clock.ts';
import type { EndedFact, FactSink } from '../telemetry/events.ts';
import type { Costs } from '../call.ts';
import { Counts, type CountOptions, type Changes } from './counts.ts';
import { addCount, addArrival, addInto, emptyCell, type Cell, type CellField } from './cell.ts';
import { busyIn, type ActivityLaneId } from './lane-table.ts';
import { addEnd, keptMinutes, minuteMs, arrivalsPerSecond, type Minutes } from './minutes.ts';
import type { ActivityKey, LaneCalls, SharedActivity } from './shared.ts';

export type { ActivityLaneId } from './lane-table.ts';

/** How many forgotten lanes are published nevertheless, because they have waiting calls or calls in flight. */
const maxLiveForgotten = 1_000;
/** Workspaces published as the busiest: more than there are labels, so that all replicas agree on who gets one. */
const maxBusiest = 200;

const oneRequest: Costs = { requests: 1 };

export interface RecorderOptions extends CountOptions {
  readonly clock: Clock;
  readonly shared: SharedActivity;
  /** Lanes of this replica with calls that wait or are in flight now. */
  readonly live?: () => Iterable<ActivityLaneId & LaneCalls>;
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
  readonly #counts: Counts;

  constructor(options: RecorderOptions) {
    this.#options = options;
    this.#counts = new Counts(options);
  }

  /** How many lanes are remembered now. */
  get laneCount(): number {
    return this.#counts.lanes.size;
  }

  arrived(workspaceId: string, upstream: string, costs: Costs = oneRequest): void {
    const now = this.#options.clock.now();
    const second = Math.floor((now % minuteMs) / 1_000);
    const minute = Math.floor(now / minuteMs);
    const lane = this.#counts.lane(workspaceId, upstream, minute);
    addArrival(this.#counts.own(lane, minute), second, costs);
    addArrival(this.#counts.all(lane, minute), second, costs);
  }

  throttled(workspaceId: string, upstream: string, kind: 'rate' | 'permanent'): void {
    this.#count(workspaceId, upstream, kind === 'rate' ? 'throttledRate' : 'throttledPermanent');
  }

  absorbed(workspaceId: string, upstream: string): void {
    this.#count(workspaceId, upstream, 'absorbed');
  }

  ended(workspaceId: string, upstream: string, fact: EndedFact): void {
    const minute = this.#minute();
    const lane = this.#counts.lane(workspaceId, upstream, minute);
    addEnd(this.#counts.own(lane, minute), fact);
    addEnd(this.#counts.all(lane, minute), fact);
    lane.busy += 1;
  }

  /** What was counted in a lane, all replicas. */
  sum({ workspaceId, upstream }: ActivityLaneId, span: Span): Promise<Cell> {
    const own = this.#counts.lanes.find(workspaceId, upstream)?.minutes;
    return this.#sum(own, this.#counts.keyOf(workspaceId, upstream), span);
  }

  /** What other replicas counted for a workspace that has not called here, by its label. */
  sumElsewhere(label: string, upstream: string, span: Span): Promise<Cell> {
    return this.#sum(undefined, this.#counts.keyOfLabel(label, upstream), span);
  }

  /** What was counted on an upstream for all workspaces together, also for those whose lanes were forgotten; all replicas. */
  total(upstream: string, span: Span): Promise<Cell> {
    return this.#sum(this.#counts.total(upstream), this.#counts.totalKeyOf(upstream), span);
  }

  /** The same minute by minute: the last `minutes`, the running one last. */
  async totalByMinute(upstream: string, minutes: number): Promise<readonly Cell[]> {
    const to = this.#minute();
    const cells = Array.from({ length: minutes }, (_, at) => emptyCell(to - minutes + 1 + at));
    const others = await this.#options.shared.others(this.#counts.totalKeyOf(upstream), to - minutes + 1);
    for (const cell of [...(this.#counts.total(upstream)?.since(to - minutes + 1) ?? []), ...others]) {
      const sum = cells[cell.minute - to + minutes - 1];
      if (sum !== undefined) addInto(sum, cell);
    }
    return cells;
  }

  /** Upstreams with anything recorded on this replica since it started. */
  upstreams(): Iterable<string> {
    return this.#counts.upstreams();
  }

  /** Arrivals per second over the last hour, oldest first, all replicas; up to `until` (wall clock, default now). */
  arrivals(workspaceId: string, upstream: string, until?: number): Promise<readonly number[]> {
    const own = this.#counts.lanes.find(workspaceId, upstream)?.minutes;
    const now = until ?? this.#options.clock.now();
    return this.#arrivals(own, this.#counts.keyOf(workspaceId, upstream), now);
  }

  /** Arrivals per second, as `arrivals` returns them, of all workspaces together. */
  allArrivals(upstream: string, until: number): Promise<readonly number[]> {
    return this.#arrivals(this.#counts.total(upstream), this.#counts.totalKeyOf(upstream), until);
  }

  /** Each workspace with a lane on this replica, and how busy that workspace is here (`telemetry/busyness.policy.ts`). */
  busiest(): ReadonlyMap<string, number> {
    const minute = this.#minute();
    const found = new Map<string, number>();
    for (const lane of this.#counts.lanes.values()) {
      found.set(lane.workspaceId, (found.get(lane.workspaceId) ?? 0) + busyIn(lane, minute));
    }
    return found;
  }

  /** The lanes among `ids` for which any replica recorded anything in the last `minutes` minutes. */
  async active<Id extends ActivityLaneId>(ids: readonly Id[], minutes: number): Promise<readonly Id[]> {
    const from = this.#minute() - minutes;
    const elsewhere = await this.#options.shared.active(from);
    return ids.filter(({ workspaceId, upstream }) => {
      const lane = this.#counts.lanes.find(workspaceId, upstream);
      if (lane?.minutes.hasSince(from) === true) return true;
      return elsewhere.size > 0 && elsewhere.has(this.#counts.keyOf(workspaceId, upstream));
    });
  }

  /** Calls of a lane that wait or are in flight, on all replicas. The counts of other replicas are a few seconds old. */
  async calls(workspaceId: string, upstream: string): Promise<LaneCalls> {
    const { shared, live } = this.#options;
    let { waiting, inFlight } = await shared.callsOf(this.#counts.keyOf(workspaceId, upstream));
    for (const own of live?.() ?? []) {
      if (own.workspaceId !== workspaceId || own.upstream !== upstream) continue;
      waiting += own.waiting;
      inFlight += own.inFlight;
    }
    return { waiting, inFlight };
  }

  /** Calls of all workspaces on an upstream that wait or are in flight, on all replicas, as `calls` counts them for one. */
  async callsTo(upstream: string): Promise<LaneCalls> {
    let { waiting, inFlight } = await this.#options.shared.callsOf(this.#everybodysCallsKey(upstream));
    for (const own of this.#options.live?.() ?? []) {
      if (own.upstream !== upstream) continue;
      waiting += own.waiting;
      inFlight += own.inFlight;
    }
    return { waiting, inFlight };
  }

  /** Publishes to the other replicas what changed; called every few seconds, also when nothing did. */
  publish(): Promise<void> {
    const { totals, lanes, dropped } = this.#counts.takeChanges();
    return this.#options.shared.publish({
      totals: () => totals.flatMap(({ of, cells }) => cells.map((cell) => ({ lane: of.key, cell }))),
      lanes: () => this.#selectPublished(lanes),
      dropped,
      calls: () => this.#liveCalls(),
      busiest: () => this.#busiestByLabel(),
    });
  }

  /** Yields cells of every lane while there is room for all lanes, of the busier half of them when there is not. */
  *#selectPublished(lanes: Changes['lanes']) {
    const minute = this.#minute();
    for (const { of, cells } of lanes) {
      if (!this.#counts.lanes.isSpared(of, minute)) continue;
      of.published = true;
      for (const cell of cells) yield { lane: of.minutes.key, cell };
    }
  }

  /**
   * Calls of this replica that wait or are in flight: by lane, for remembered lanes and up to {@link maxLiveForgotten} others;
   * and for each upstream those of all workspaces together.
   */
  #liveCalls(): ReadonlyMap<ActivityKey, LaneCalls> {
    const calls = new Map<ActivityKey, LaneCalls>();
    let forgotten = 0;
    for (const { workspaceId, upstream, waiting, inFlight } of this.#options.live?.() ?? []) {
      if (waiting + inFlight === 0) continue;
      const all = this.#everybodysCallsKey(upstream);
      const sum = calls.get(all);
      calls.set(all, {
        waiting: waiting + (sum?.waiting ?? 0),
        inFlight: inFlight + (sum?.inFlight ?? 0),
      });
      const isKnown = this.#counts.lanes.find(workspaceId, upstream) !== undefined;
      if (!isKnown && ++forgotten > maxLiveForgotten) continue;
      calls.set(this.#counts.keyOf(workspaceId, upstream), { waiting, inFlight });
    }
    return calls;
  }

  /**
   * The key under which calls of all workspaces on an upstream are published: that of the upstream's total. The two do not mix: a
   * store keeps live calls apart from cells.
   */
  #everybodysCallsKey(upstream: string): ActivityKey {
    return this.#counts.totalKeyOf(upstream);
  }

  #busiestByLabel(): ReadonlyMap<string, number> {
    const ranked = [...this.busiest()].filter(([, busy]) => busy > 0).sort(([, a], [, b]) => b - a);
    return new Map(ranked.slice(0, maxBusiest).map(([id, busy]) => [this.#options.labelOf(id), busy]));
  }

  #minute(): number {
    return Math.floor(this.#options.clock.now() / minuteMs);
  }

  async #sum(own: Minutes | undefined, key: ActivityKey, { minutes, readSince }: Span): Promise<Cell> {
    const from = this.#minute() - minutes;
    const others = await this.#options.shared.others(key, from, readSince);
    const total = emptyCell(from);
    for (const cell of own?.since(from) ?? []) addInto(total, cell);
    for (const cell of others) addInto(total, cell);
    return total;
  }

  async #arrivals(own: Minutes | undefined, key: ActivityKey, now: number): Promise<readonly number[]> {
    const from = Math.floor(now / minuteMs) - (keptMinutes - 1);
    const others = await this.#options.shared.others(key, from);
    return arrivalsPerSecond([...(own?.since(from) ?? []), ...others], from, now);
  }

  #count(workspaceId: string, upstream: string, field: CellField): void {
    const minute = this.#minute();
    const lane = this.#counts.lane(workspaceId, upstream, minute);
    addCount(this.#counts.own(lane, minute), field);
    addCount(this.#counts.all(lane, minute), field);
  }
}
