/**
 * Remembers the last hour of workspaces on their upstreams, minute by minute, and shares it with the other replicas.
 *
 * A fact is counted under the name of its workspace's label on the upstream, and in the total of the upstream. Of very many workspaces only
 * the totals count all: whichever workspaces are shown, their rows and the rest of the total are together all calls.
 */
import type { Costs } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { EndedFact, FactSink, LiveLane } from '../telemetry/events.ts';
import { Cell, sumOf } from './cell.policy.ts';
import { minuteMs } from '../time-units.ts';

/** `<upstream>` for all calls to it, `<upstream> <label>` for those of one workspace. Neither part has a blank. */
export type CellName = string;
export type Minutes = ReadonlyMap<number, ReadonlyMap<CellName, Cell>>;

/** Minutes kept: the running one and an hour of full ones. */
export const keptMinutes = 61;
/** Workspaces on an upstream that are counted apart in one minute; those that call first. */
const maxLanes = 1_000;
/** Of those the busiest are shared with other replicas, as many as this. */
const maxShared = 200;

/** Calls that wait and that are in flight. */
export type LaneCalls = Pick<LiveLane, 'waiting' | 'inFlight'>;

/** What the *other* replicas counted, added up, a few seconds old. */
export interface Others {
  /** Those that published lately. */
  readonly replicas: number;
  readonly live: ReadonlyMap<CellName, LaneCalls>;
  readonly minutes: Minutes;
}
export const nobody: Others = { replicas: 0, live: new Map(), minutes: new Map() };

/** What a replica publishes every few seconds: its calls now, and the minutes that changed. */
export interface Publication {
  readonly live: ReadonlyMap<CellName, LaneCalls>;
  readonly minutes: ReadonlyMap<number, readonly (readonly [CellName, Cell])[]>;
}

/** How replicas share what they counted. Minutes are those of the wall clock, so that they add up. */
export interface SharedActivity {
  /** Replaces what this replica published of these minutes, and says that it is there. False: it could not be stored. Never rejects. */
  publish(publication: Publication): Promise<boolean>;
  /** Never rejects: without Redis there are no others. */
  others(): Promise<Others>;
  close(): void;
}

/** One process: there are no others. */
export const embeddedActivity: SharedActivity = {
  publish: () => Promise.resolve(true),
  others: () => Promise.resolve(nobody),
  close: () => {},
};

interface RecorderOptions {
  readonly clock: Clock;
  readonly shared: SharedActivity;
  readonly labelOf: (workspaceId: string) => string;
  /** Workspaces of this replica with calls that wait or are in flight now. */
  readonly live?: () => Iterable<LiveLane>;
}

export class Recorder implements FactSink {
  readonly #options: RecorderOptions;
  readonly #minutes = new Map<number, Map<CellName, Cell>>();
  /** Minutes that changed since they were published. */
  #changed = new Set<number>();

  constructor(options: RecorderOptions) {
    this.#options = options;
  }

  nameOf(workspaceId: string, upstream: string): CellName {
    return `${upstream} ${this.#options.labelOf(workspaceId)}`;
  }

  arrived(workspaceId: string, upstream: string, costs: Costs = { requests: 1 }): void {
    const second = Math.floor((this.#options.clock.now() % minuteMs) / 1_000);
    for (const cell of this.#running(workspaceId, upstream)) cell.arrived(second, costs);
  }

  counted(workspaceId: string, upstream: string, fact: Parameters<FactSink['counted']>[2]): void {
    for (const cell of this.#running(workspaceId, upstream)) cell.add(fact);
  }

  ended(workspaceId: string, upstream: string, fact: EndedFact): void {
    for (const cell of this.#running(workspaceId, upstream)) cell.ended(fact);
  }

  /** What all replicas counted. */
  async hour(): Promise<Hour> {
    const { clock, shared } = this.#options;
    const others = await shared.others();
    return new Hour(clock.now(), { minutes: this.#minutes, live: this.#live() }, others);
  }

  /** Calls of each workspace that ended on this replica in the hour. */
  busiest(): ReadonlyMap<string, number> {
    const found = new Map<string, number>();
    for (const { workspaceId, counts } of [...this.#minutes.values()].flatMap((cells) => [...cells.values()]))
      if (workspaceId !== null)
        found.set(workspaceId, (found.get(workspaceId) ?? 0) + (counts['ended'] ?? 0));
    return found;
  }

  /** Publishes what changed, also what could not be stored the last time; called every few seconds, also when nothing did. */
  async publish(): Promise<void> {
    const changed = [...this.#changed];
    this.#changed.clear();
    const minutes = new Map(
      changed.map((minute) => [minute, busiestOf(this.#minutes.get(minute) ?? new Map<CellName, Cell>())]),
    );
    const isStored = await this.#options.shared.publish({ live: this.#live(), minutes });
    if (!isStored) for (const minute of changed) if (this.#minutes.has(minute)) this.#changed.add(minute);
  }

  /** The cells of the minute in which a fact is counted: that of everybody, and its workspace's own. */
  #running(workspaceId: string, upstream: string): readonly Cell[] {
    const minute = Math.floor(this.#options.clock.now() / minuteMs);
    let cells = this.#minutes.get(minute);
    if (cells === undefined) {
      this.#minutes.set(minute, (cells = new Map()));
      for (const old of this.#minutes.keys()) if (old <= minute - keptMinutes) this.#minutes.delete(old);
    }
    this.#changed.add(minute);
    const name = this.nameOf(workspaceId, upstream);
    const known = cells.get(name);
    const total = cells.get(upstream) ?? new Cell(minute);
    if (known !== undefined) return [total, known];
    cells.set(upstream, total);
    if (cells.size >= maxLanes) return [total];
    const own = new Cell(minute, workspaceId);
    cells.set(name, own);
    return [total, own];
  }

  #live(): ReadonlyMap<CellName, LaneCalls> {
    const calls = new Map<CellName, LaneCalls>();
    for (const { workspaceId, upstream, ...now } of this.#options.live?.() ?? []) {
      addCalls(calls, upstream, now);
      if (calls.size < maxLanes) addCalls(calls, this.nameOf(workspaceId, upstream), now);
    }
    return calls;
  }
}

/** Totals, and the busiest workspaces. */
function busiestOf(cells: ReadonlyMap<CellName, Cell>): readonly (readonly [CellName, Cell])[] {
  const { true: lanes = [], false: totals = [] } = Object.groupBy(cells, ([name]) => `${name.includes(' ')}`);
  const byCalls = lanes.toSorted(([, a], [, b]) => b.of('ended') - a.of('ended'));
  return [...totals, ...byCalls.slice(0, maxShared)];
}

export function addCalls(sums: Map<CellName, LaneCalls>, name: CellName, more: LaneCalls): void {
  const { waiting, inFlight } = sums.get(name) ?? { waiting: 0, inFlight: 0 };
  sums.set(name, { waiting: waiting + more.waiting, inFlight: inFlight + more.inFlight });
}

/** The hour until now, of all replicas. */
export class Hour {
  /** Wall clock, milliseconds. */
  readonly now: number;
  readonly #all: readonly Minutes[];
  readonly #live: readonly Others['live'][];
  readonly replicas: number;

  constructor(now: number, own: Pick<Others, 'live' | 'minutes'>, others: Others) {
    this.now = now;
    this.replicas = others.replicas + 1;
    this.#all = [others.minutes, own.minutes];
    this.#live = [own.live, others.live];
  }

  /** Sum of the last minutes (1 to 60) and the running one. */
  sum(name: CellName, minutes = 60): Cell {
    return sumOf(this.#cells(name, minutes));
  }

  /** The same minute by minute: the last `minutes`, the running one last. */
  byMinute(name: CellName, minutes = 60): readonly Cell[] {
    const cells = Map.groupBy(this.#cells(name, minutes), ({ minute }) => minute);
    const last = Math.floor(this.now / minuteMs);
    return Array.from({ length: minutes }, (_, at) => {
      const minute = last - minutes + 1 + at;
      return sumOf(cells.get(minute) ?? [], minute);
    });
  }

  /** Arrivals in each second of the hour, oldest first. */
  arrivals(name: CellName): readonly number[] {
    const seconds = Array.from({ length: 3_600 }, () => 0);
    const first = Math.floor(this.now / 1_000) - 3_599;
    for (const cell of this.#cells(name, 60)) {
      for (const [i, n] of cell.seconds.entries()) {
        const at = cell.minute * 60 + i - first;
        if (seconds[at] !== undefined) seconds[at] += n;
      }
    }
    return seconds;
  }

  /** Calls that wait or are in flight. */
  calls(name: CellName): LaneCalls {
    const all = this.#live.flatMap((live) => live.get(name) ?? []);
    const sum = (of: keyof LaneCalls) => all.reduce((total, calls) => total + calls[of], 0);
    return { waiting: sum('waiting'), inFlight: sum('inFlight') };
  }

  /** Under what anything was counted, with the workspace where this replica has seen it, and how many calls ended in the hour. */
  names(): ReadonlyMap<CellName, { readonly workspaceId: string | null; readonly ended: number }> {
    const all = new Map<CellName, { workspaceId: string | null; ended: number }>();
    for (const [name, { workspaceId, counts }] of this.#all.flatMap((minutes) =>
      [...minutes.values()].flatMap((cells) => [...cells]),
    )) {
      const known = all.get(name);
      const ended = (known?.ended ?? 0) + (counts['ended'] ?? 0);
      all.set(name, { workspaceId: workspaceId ?? known?.workspaceId ?? null, ended });
    }
    return all;
  }

  *#cells(name: CellName, minutes: number): Generator<Cell> {
    const from = Math.floor(this.now / minuteMs) - minutes;
    for (const all of this.#all) {
      for (const [minute, cells] of all) {
        const cell = minute >= from ? cells.get(name) : undefined;
        if (cell !== undefined) yield cell;
      }
    }
  }
}
