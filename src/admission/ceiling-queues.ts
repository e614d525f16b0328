/** Counts the calls that wait under each ceiling, over all buckets, and in each lane; knows the lanes in which they wait. */
import { isBackground, type CeilingKey, type LaneKey } from '../ids.ts';
import type { LaneView } from './lanes.ts';
import type { QueuedCall } from './queued-call.ts';

interface CeilingQueue {
  waiting: number;
  /** Of these the background calls. */
  background: number;
  readonly lanes: Set<LaneView>;
}

export class CeilingQueues {
  readonly #queues = new Map<CeilingKey, CeilingQueue>();

  waitingUnder(key: CeilingKey): number {
    return this.#queues.get(key)?.waiting ?? 0;
  }

  /** Those that the arrival of a call in this lane is judged by: background calls take no place in the line from others. */
  waitingBeside(key: CeilingKey, lane: LaneKey): number {
    const { waiting, background } = this.#queues.get(key) ?? { waiting: 0, background: 0 };
    return isBackground(lane) ? waiting : waiting - background;
  }

  lanesUnder(key: CeilingKey): Iterable<LaneView> {
    return this.#queues.get(key)?.lanes ?? [];
  }

  /** The call begins to wait. */
  add({ lane, request: { ceiling } }: QueuedCall): void {
    let queue = this.#queues.get(ceiling.key);
    if (queue === undefined)
      this.#queues.set(ceiling.key, (queue = { waiting: 0, background: 0, lanes: new Set() }));
    queue.waiting += 1;
    if (isBackground(lane.key)) queue.background += 1;
    lane.waiting += 1;
    queue.lanes.add(lane);
  }

  /** The call waits no longer. */
  remove({ lane, request: { ceiling } }: QueuedCall): void {
    const queue = this.#queues.get(ceiling.key);
    lane.waiting -= 1;
    if (queue === undefined) return;
    queue.waiting -= 1;
    if (isBackground(lane.key)) queue.background -= 1;
    if (lane.waiting === 0) queue.lanes.delete(lane);
    if (queue.waiting === 0) this.#queues.delete(ceiling.key);
  }
}
