/**
 * Remembers the last hour of workspaces on their upstreams, minute by minute, and shares it with the other replicas.
 *
 * A fact is counted under the name of its workspace's label on the upstream, and in the total of the upstream. Of very many workspaces only
 * the totals count all: whichever workspaces are shown, their rows and the rest of the total are together all calls.
 */
import type { Clock } from '../clock.ts';
import type { FactSink, LiveLane } from '../telemetry/events.ts';
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
interface Publication {
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

export type Recorder = ReturnType<typeof createActivityRecorder>;

/** `live`: workspaces of this replica with calls that wait or are in flight now. */
export function createActivityRecorder({
  clock,
  shared,
  labelOf,
  live = () => [],
}: {
  readonly clock: Clock;
  readonly shared: SharedActivity;
  readonly labelOf: (workspaceId: string) => string;
  readonly live?: () => Iterable<LiveLane>;
}) {
  const minutes = new Map<number, Map<CellName, Cell>>();
  /** Minutes that changed since they were published. */
  const changed = new Set<number>();

  const nameOf = (workspaceId: string, upstream: string): CellName => `${upstream} ${labelOf(workspaceId)}`;

  /** The cells of the minute in which a fact is counted: that of everybody, and its workspace's own. */
  function running(workspaceId: string, upstream: string): readonly Cell[] {
    const minute = Math.floor(clock.now() / minuteMs);
    let cells = minutes.get(minute);
    if (cells === undefined) {
      minutes.set(minute, (cells = new Map()));
      for (const old of minutes.keys()) if (old <= minute - keptMinutes) minutes.delete(old);
    }
    changed.add(minute);
    const name = nameOf(workspaceId, upstream);
    const known = cells.get(name);
    const total = cells.get(upstream) ?? new Cell(minute);
    if (known !== undefined) return [total, known];
    cells.set(upstream, total);
    if (cells.size >= maxLanes) return [total];
    const own = new Cell(minute, workspaceId);
    cells.set(name, own);
    return [total, own];
  }

  function callsNow(): ReadonlyMap<CellName, LaneCalls> {
    const calls = new Map<CellName, LaneCalls>();
    for (const { workspaceId, upstream, ...now } of live()) {
      addCalls(calls, upstream, now);
      if (calls.size < maxLanes) addCalls(calls, nameOf(workspaceId, upstream), now);
    }
    return calls;
  }

  const sink: FactSink = {
    arrived(workspaceId, upstream, costs) {
      const second = Math.floor((clock.now() % minuteMs) / 1_000);
      for (const cell of running(workspaceId, upstream)) cell.arrived(second, costs);
    },
    counted(workspaceId, upstream, fact) {
      for (const cell of running(workspaceId, upstream)) cell.add(fact);
    },
    ended(workspaceId, upstream, fact) {
      for (const cell of running(workspaceId, upstream)) cell.ended(fact);
    },
  };
  return {
    ...sink,
    nameOf,

    /** What all replicas counted. */
    async hour(): Promise<Hour> {
      const others = await shared.others();
      return hourUntil(clock.now(), { minutes, live: callsNow() }, others);
    },

    /** Calls of each workspace that ended on this replica in the hour. */
    busiest(): ReadonlyMap<string, number> {
      const found = new Map<string, number>();
      for (const { workspaceId, counts } of [...minutes.values()].flatMap((cells) => [...cells.values()]))
        if (workspaceId !== null)
          found.set(workspaceId, (found.get(workspaceId) ?? 0) + (counts['ended'] ?? 0));
      return found;
    },

    /** Publishes what changed, also what could not be stored the last time; called every few seconds, also when nothing did. */
    async publish(): Promise<void> {
      const taken = [...changed];
      changed.clear();
      const busiest = taken.map((minute) => [minute, busiestOf(minutes.get(minute) ?? new Map())] as const);
      const isStored = await shared.publish({ live: callsNow(), minutes: new Map(busiest) });
      if (!isStored) for (const minute of taken) if (minutes.has(minute)) changed.add(minute);
    },
  };
}

/** Totals, and the busiest workspaces. */
function busiestOf(cells: ReadonlyMap<CellName, Cell>): readonly (readonly [CellName, Cell])[] {
  const { true: lanes = [], false: totals = [] } = Object.groupBy(cells, ([name]) => `${name.includes(' ')}`);
  const byCalls = lanes.toSorted(([, a], [, b]) => b.of('ended') - a.of('ended'));
  return [...totals, ...byCalls.slice(0, maxShared)];
}

const noCalls: LaneCalls = { waiting: 0, inFlight: 0 };
const sumOfCalls = (some = noCalls, more = noCalls): LaneCalls => ({
  waiting: some.waiting + more.waiting,
  inFlight: some.inFlight + more.inFlight,
});

export const addCalls = (sums: Map<CellName, LaneCalls>, name: CellName, more: LaneCalls): void =>
  void sums.set(name, sumOfCalls(sums.get(name), more));

export type Hour = ReturnType<typeof hourUntil>;

/** The hour until now, of all replicas. `now`: wall clock, milliseconds. */
function hourUntil(now: number, own: Pick<Others, 'live' | 'minutes'>, others: Others) {
  function* cellsOf(name: CellName, minutes: number): Generator<Cell> {
    const from = Math.floor(now / minuteMs) - minutes;
    for (const [minute, cells] of [...others.minutes, ...own.minutes]) {
      const cell = minute >= from ? cells.get(name) : undefined;
      if (cell !== undefined) yield cell;
    }
  }
  return {
    now,
    replicas: others.replicas + 1,

    /** Sum of the last minutes (1 to 60) and the running one. */
    sum: (name: CellName, minutes = 60): Cell => sumOf(cellsOf(name, minutes)),

    /** The same minute by minute: the last `minutes`, the running one last. */
    byMinute(name: CellName, minutes = 60): readonly Cell[] {
      const cells = Map.groupBy(cellsOf(name, minutes), ({ minute }) => minute);
      const last = Math.floor(now / minuteMs);
      return Array.from({ length: minutes }, (_, at) => {
        const minute = last - minutes + 1 + at;
        return sumOf(cells.get(minute) ?? [], minute);
      });
    },

    /** Arrivals in each second of the hour, oldest first. */
    arrivals(name: CellName): readonly number[] {
      const seconds = Array.from({ length: 3_600 }, () => 0);
      const first = Math.floor(now / 1_000) - 3_599;
      for (const cell of cellsOf(name, 60))
        for (const [i, n] of cell.seconds.entries()) {
          const at = cell.minute * 60 + i - first;
          if (seconds[at] !== undefined) seconds[at] += n;
        }
      return seconds;
    },

    /** Calls that wait or are in flight. */
    calls: (name: CellName): LaneCalls => sumOfCalls(own.live.get(name), others.live.get(name)),

    /** Under what anything was counted, with the workspace where this replica has seen it, and how many calls ended in the hour. */
    names(): ReadonlyMap<CellName, { readonly workspaceId: string | null; readonly ended: number }> {
      const all = new Map<CellName, { workspaceId: string | null; ended: number }>();
      const minutes = [...others.minutes.values(), ...own.minutes.values()];
      for (const [name, cell] of minutes.flatMap((cells) => [...cells])) {
        const { workspaceId, ended } = all.get(name) ?? { workspaceId: null, ended: 0 };
        all.set(name, { workspaceId: cell.workspaceId ?? workspaceId, ended: ended + cell.of('ended') });
      }
      return all;
    },
  };
}
