/**
 * Decides which waiting call gets the next socket of an upstream. Node's pool serves calls in the order in which they come, so
 * that ten thousand calls of one workspace would be served before those of all others.
 *
 * The workspace with the fewest permits for its weight is next, of several the one whose latest permit is the oldest; calls of one
 * workspace keep their order; a single busy workspace leaves a few permits free for others; no call waits while a permit is free that
 * its workspace may have. How long a call may wait is its exchange's connect limit.
 */

/** This share of all permits is kept for workspaces that hold none. Rounded down, so that fewer than 16 permits keep nothing. */
const keptFree = 1 / 16;

/** One workspace at one origin. */
interface Line {
  /** One of weight 2 may have twice as many permits as one of weight 1 before it comes after it. */
  weight: number;
  taken: number;
  /** Number, among all permits taken at the origin, of the workspace's latest one. */
  last: number;
  /** What calls that wait do with their permits, in the order of their coming. */
  readonly waiting: Set<() => void>;
}

/** The permits of one pool, by origin: `max` at each. */
export class SocketPermits {
  readonly #max: number;
  /** Workspaces that hold a permit or wait for one, by id. */
  readonly #origins = new Map<string, { taken: number; served: number; lines: Map<string, Line> }>();

  constructor(max: number) {
    this.#max = max;
  }

  /**
   * Calls `start` once, at once or when its turn has come. Returns what ends the permit, or the wait for it; after that `start` is not
   * called. A second end does nothing.
   */
  enter(
    name: string,
    { id, weight }: { readonly id: string; readonly weight: number },
    start: () => void,
  ): () => void {
    const origin = this.#origins.get(name) ?? { lines: new Map<string, Line>(), taken: 0, served: 0 };
    const line = origin.lines.get(id) ?? { weight, taken: 0, last: 0, waiting: new Set() };
    this.#origins.set(name, origin);
    origin.lines.set(id, line);
    line.weight = weight;
    let state: 'waiting' | 'taken' | 'over' = 'waiting';
    const mayTake = ({ taken }: Line): boolean =>
      origin.taken < this.#max - (taken === 0 ? 0 : Math.floor(this.#max * keptFree));
    const take = (): void => {
      state = 'taken';
      line.waiting.delete(take);
      line.taken += 1;
      origin.taken += 1;
      line.last = origin.served += 1;
      start();
    };
    // A workspace with waiting calls cannot take a permit now, or those calls would have it: the new call queues behind them.
    if (line.waiting.size === 0 && mayTake(line)) take();
    else line.waiting.add(take);
    return () => {
      if (state === 'over') return;
      if (state === 'taken') {
        line.taken -= 1;
        origin.taken -= 1;
      }
      state = 'over';
      line.waiting.delete(take);
      for (;;) {
        let next: Line | null = null;
        for (const one of origin.lines.values())
          if (one.waiting.size > 0 && mayTake(one) && (next === null || isBefore(one, next))) next = one;
        if (next === null) break;
        const [first] = next.waiting;
        first?.();
      }
      if (line.taken + line.waiting.size === 0) origin.lines.delete(id);
      if (origin.lines.size === 0) this.#origins.delete(name);
    };
  }
}

function isBefore(one: Line, other: Line): boolean {
  const more = one.taken * other.weight - other.taken * one.weight;
  return more < 0 || (more === 0 && one.last < other.last);
}
