/** A store that several recorders share, as Redis is, without Redis: what is published is there at once. */
import { Cell } from '../../src/activity/cell.policy.ts';
import { addCalls, type CellName, type LaneCalls, type SharedActivity } from '../../src/activity/recorder.ts';

interface ReplicaState {
  readonly minutes: Map<number, readonly (readonly [CellName, Cell])[]>;
  live: ReadonlyMap<CellName, LaneCalls>;
}

/** Gives each replica, by name, its side of the store. */
export function sharedStore(): (replica: string) => SharedActivity {
  const published = new Map<string, ReplicaState>();
  return (replica) => ({
    publish({ live, minutes }) {
      const own = published.get(replica) ?? { minutes: new Map(), live };
      own.live = live;
      for (const [minute, cells] of minutes) {
        const copies = cells.map(([name, cell]) => {
          const copy = new Cell(minute);
          copy.addAll(cell);
          return [name, copy] as const;
        });
        own.minutes.set(minute, copies);
      }
      published.set(replica, own);
      return Promise.resolve(true);
    },
    others() {
      const others = [...published].filter(([name]) => name !== replica).map(([, state]) => state);
      const minutes = new Map<number, Map<CellName, Cell>>();
      const live = new Map<CellName, LaneCalls>();
      for (const state of others) {
        for (const [name, calls] of state.live) addCalls(live, name, calls);
        for (const [minute, cells] of state.minutes) {
          const sums = minutes.get(minute) ?? new Map<CellName, Cell>();
          minutes.set(minute, sums);
          for (const [name, cell] of cells) {
            const sum = sums.get(name) ?? new Cell(minute);
            sum.addAll(cell);
            sums.set(name, sum);
          }
        }
      }
      return Promise.resolve({ replicas: others.length, live, minutes });
    },
    close: () => {},
  });
}
