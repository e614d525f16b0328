/**
 * Remembers the last hour of every workspace on every upstream, minute by minute. Owns memory and its bound; refuses to
 * own limits (they are asked for when somebody looks) and labels.
 *
 * Bound: `maxLanes` lanes of 61 cells (about 0.9 KB each, made when first used); beyond it the lane idle for longest is
 * forgotten. Workspace ids stay in this process's memory; what leaves it goes under a digest.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';
import type { FactSink } from '../telemetry/events.ts';
import { add, addArrival, addInto, addWait, emptyCell, shedReasons, type Cell } from './cell.ts';
import type { ActivityKey, LaneCalls, SharedActivity } from './shared.ts';

/** Whose lane. Stays in this process. */
export interface LaneId {
  readonly workspaceId: string;
  readonly upstream: string;
}

/** Minutes kept: the running one and an hour of full ones. */
const kept = 61;
const minuteMs = 60_000;

/** Upstream names have no blank, so that the pair is unambiguous. */
const nameOf = (workspaceId: string, upstream: string): string => `${upstream} ${workspaceId}`;

interface Lane extends LaneId {
  readonly key: ActivityKey;
  readonly cells: (Cell | undefined)[];
  /** Minutes changed since the last publication. */
  readonly changed: Set<number>;
  /** Cell of the running minute: most facts find it here. */
  current: Cell | null;
}

export interface Recorder extends FactSink {
  /** Sum of the last `minutes` minutes (1 to 60) and the running one, all replicas. */
  sum(workspaceId: string, upstream: string, minutes: number): Promise<Cell>;
  /** Arrivals per second over the last hour, oldest first, all replicas; up to `until` (wall clock, default now). */
  arrivals(workspaceId: string, upstream: string, until?: number): Promise<readonly number[]>;
  /** Hands changed cells to the other replicas; called every few seconds. */
  publish(): Promise<void>;
  /** Calls of a lane that wait and that are in flight, all replicas; the others' are a few seconds old. */
  calls(workspaceId: string, upstream: string): Promise<LaneCalls>;
  /** Lanes with anything recorded in the last `minutes` minutes, on any replica. */
  active(minutes: number): Promise<readonly LaneId[]>;
  readonly lanes: number;
}

export interface RecorderOptions {
  readonly clock: Clock;
  /** Digest of a lane for the shared store. */
  readonly keyOf: (workspaceId: string, upstream: string) => ActivityKey;
  readonly shared: SharedActivity;
  /** All configured pairs: recognizes lanes that only other replicas have seen. */
  readonly configured?: () => Iterable<LaneId>;
  /** Lanes of this replica with calls that wait or are in flight now. */
  readonly live?: () => Iterable<LaneId & LaneCalls>;
  readonly maxLanes?: number;
}

export function createRecorder(options: RecorderOptions): Recorder {
  const { clock, keyOf, shared, configured, live, maxLanes = 1_000 } = options;
  const lanes = new LRUCache<string, Lane>({
    max: maxLanes,
    dispose: ({ workspaceId, upstream }) => {
      const own = found.get(upstream);
      own?.delete(workspaceId);
      if (own?.size === 0) found.delete(upstream);
    },
  });
  /** The same lanes by upstream and workspace: every call asks twice, and a name put together costs more than the count. */
  const found = new Map<string, Map<string, Lane>>();
  const dirty = new Set<Lane>();

  function newLane(workspaceId: string, upstream: string): Lane {
    const key = keyOf(workspaceId, upstream);
    const lane: Lane = { workspaceId, upstream, key, cells: [], changed: new Set(), current: null };
    lanes.set(nameOf(workspaceId, upstream), lane);
    let own = found.get(upstream);
    if (own === undefined) found.set(upstream, (own = new Map()));
    own.set(workspaceId, lane);
    return lane;
  }

  function cellNow(workspaceId: string, upstream: string): Cell {
    const lane = found.get(upstream)?.get(workspaceId) ?? newLane(workspaceId, upstream);
    const minute = Math.floor(clock.now() / minuteMs);
    const { current } = lane;
    if (current?.minute === minute && lane.changed.has(minute)) return current;
    // Once a minute or publication: this makes the lane the last one to be forgotten.
    lanes.get(nameOf(workspaceId, upstream));
    let cell = lane.cells[minute % kept];
    // A clock that stepped back far writes into the newer cell: counted, if late.
    if (cell === undefined || cell.minute < minute) lane.cells[minute % kept] = cell = emptyCell(minute);
    lane.changed.add(cell.minute);
    dirty.add(lane);
    lane.current = cell;
    return cell;
  }

  /** Looking does not make a lane, nor keep one from being forgotten. */
  const keyFor = (workspaceId: string, upstream: string): ActivityKey =>
    found.get(upstream)?.get(workspaceId)?.key ?? keyOf(workspaceId, upstream);

  async function cellsOf(
    workspaceId: string,
    upstream: string,
    fromMinute: number,
  ): Promise<readonly Cell[]> {
    const lane = found.get(upstream)?.get(workspaceId);
    const key = keyFor(workspaceId, upstream);
    const own = (lane?.cells ?? []).flatMap((cell) =>
      cell !== undefined && cell.minute >= fromMinute ? [cell] : [],
    );
    const others = await shared.others([key], fromMinute);
    return [...own, ...(others.get(key) ?? [])];
  }

  return {
    arrived(workspaceId, upstream) {
      const second = Math.floor((clock.now() % minuteMs) / 1_000);
      addArrival(cellNow(workspaceId, upstream), second);
    },
    throttled(workspaceId, upstream, kind) {
      add(cellNow(workspaceId, upstream), kind === 'rate' ? 'throttledRate' : 'throttledPermanent');
    },
    absorbed(workspaceId, upstream) {
      add(cellNow(workspaceId, upstream), 'absorbed');
    },
    ended(workspaceId, upstream, fact) {
      const cell = cellNow(workspaceId, upstream);
      add(cell, fact.outcome);
      addWait(cell, fact.waitedMs);
      if (fact.outcome !== 'shed') return;
      const reason = shedReasons.find((each) => each === fact.code);
      if (reason !== undefined) add(cell, reason);
    },
    async sum(workspaceId, upstream, minutes) {
      const from = Math.floor(clock.now() / minuteMs) - minutes;
      const total = emptyCell(from);
      for (const cell of await cellsOf(workspaceId, upstream, from)) addInto(total, cell);
      return total;
    },
    async arrivals(workspaceId, upstream, until) {
      const now = until ?? clock.now();
      const from = Math.floor(now / minuteMs) - (kept - 1);
      const seconds = Array.from(
        { length: (kept - 1) * 60 + Math.floor((now % minuteMs) / 1_000) + 1 },
        () => 0,
      );
      for (const cell of await cellsOf(workspaceId, upstream, from)) {
        const start = (cell.minute - from) * 60;
        for (const [i, n] of cell.seconds.entries()) {
          if (start + i < seconds.length) seconds[start + i] = (seconds[start + i] ?? 0) + n;
        }
      }
      return seconds.slice(-3_600);
    },
    async publish() {
      const cells = [];
      for (const lane of dirty) {
        for (const minute of lane.changed) {
          const cell = lane.cells[minute % kept];
          if (cell?.minute === minute) cells.push({ lane: lane.key, cell });
        }
        lane.changed.clear();
      }
      dirty.clear();
      const calls = new Map<ActivityKey, LaneCalls>();
      for (const { workspaceId, upstream, waiting, inFlight } of live?.() ?? []) {
        if (waiting + inFlight > 0) calls.set(keyFor(workspaceId, upstream), { waiting, inFlight });
      }
      // Also with nothing new: a replica without calls is a replica.
      await shared.publish(cells, calls);
    },
    async calls(workspaceId, upstream) {
      let { waiting, inFlight } = await shared.callsOf(keyFor(workspaceId, upstream));
      for (const own of live?.() ?? []) {
        if (own.workspaceId !== workspaceId || own.upstream !== upstream) continue;
        waiting += own.waiting;
        inFlight += own.inFlight;
      }
      return { waiting, inFlight };
    },
    async active(minutes) {
      const from = Math.floor(clock.now() / minuteMs) - minutes;
      const known = new Map<ActivityKey, LaneId>();
      for (const lane of lanes.values()) {
        if (lane.cells.some((cell) => cell !== undefined && cell.minute >= from)) known.set(lane.key, lane);
      }
      const foreign = new Set(await shared.active(from));
      for (const key of known.keys()) foreign.delete(key);
      if (foreign.size > 0) {
        for (const { workspaceId, upstream } of configured?.() ?? []) {
          const key = keyOf(workspaceId, upstream);
          if (foreign.has(key)) known.set(key, { workspaceId, upstream });
        }
      }
      return [...known.values()].map(({ workspaceId, upstream }) => ({ workspaceId, upstream }));
    },
    get lanes() {
      return lanes.size;
    },
  };
}
