/** A store that several recorders share, as Redis is, without Redis: what is published is there at once. */
import type { Cell } from '../../src/activity/cell.ts';
import type { ActivityKey, LaneCalls, SharedActivity } from '../../src/activity/shared.ts';

interface ReplicaState {
  readonly cells: Map<ActivityKey, Map<number, Cell>>;
  readonly lanes: Set<ActivityKey>;
  calls: ReadonlyMap<ActivityKey, LaneCalls>;
  busiest: ReadonlyMap<string, number>;
}

/** Gives each replica, by name, its side of the store. */
export function sharedStore(): (replica: string) => SharedActivity {
  const published = new Map<string, ReplicaState>();
  return (replica) => {
    const own: ReplicaState = { cells: new Map(), lanes: new Set(), calls: new Map(), busiest: new Map() };
    const others = (): ReplicaState[] =>
      [...published].filter(([name]) => name !== replica).map(([, state]) => state);
    return {
      publish(publication) {
        const { totals, lanes, calls, busiest } = publication();
        published.set(replica, own);
        for (const { lane } of lanes) own.lanes.add(lane);
        for (const { lane, cell } of [...totals, ...lanes]) {
          const byMinute = own.cells.get(lane) ?? new Map<number, Cell>();
          own.cells.set(lane, byMinute);
          byMinute.set(cell.minute, structuredClone(cell));
        }
        own.calls = calls;
        own.busiest = busiest;
        return Promise.resolve(true);
      },
      others: (lane, fromMinute) =>
        Promise.resolve(
          others()
            .flatMap(({ cells }) => [...(cells.get(lane)?.values() ?? [])])
            .filter(({ minute }) => minute >= fromMinute),
        ),
      callsOf(lane) {
        const found = others().flatMap(({ calls }) => calls.get(lane) ?? []);
        return Promise.resolve({
          waiting: found.reduce((sum, { waiting }) => sum + waiting, 0),
          inFlight: found.reduce((sum, { inFlight }) => sum + inFlight, 0),
        });
      },
      active: (fromMinute) => {
        const isRecent = (state: ReplicaState, lane: ActivityKey): boolean =>
          [...(state.cells.get(lane)?.keys() ?? [])].some((minute) => minute >= fromMinute);
        return Promise.resolve(
          new Set(others().flatMap((state) => [...state.lanes].filter((lane) => isRecent(state, lane)))),
        );
      },
      busiest() {
        const sums = new Map<string, number>();
        for (const state of others()) {
          for (const [label, busy] of state.busiest) sums.set(label, (sums.get(label) ?? 0) + busy);
        }
        return Promise.resolve(sums);
      },
      replicas: () => Promise.resolve(published.size),
      close: () => {},
    };
  };
}
