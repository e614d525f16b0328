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

/** The workspace that a call belongs to. One of weight 2 may have twice as many permits as one of weight 1 before it comes after it. */
export interface Share {
  readonly id: string;
  readonly weight: number;
}

/** A call's permit, or its wait for one. */
export interface SocketPermit {
  /** Ends the permit, or the wait for it. A second end does nothing. */
  end(): void;
}

/** One workspace at one origin. */
interface Line {
  weight: number;
  taken: number;
  /** Number, among all permits taken at the origin, of the workspace's latest one. */
  last: number;
  /** What calls that wait do with their permits, in the order of their coming. */
  readonly waiting: Set<() => void>;
}

/** Workspaces that hold a permit or wait for one. */
interface Origin {
  readonly lines: Map<string, Line>;
  taken: number;
  served: number;
}

/** The permits of one pool, by origin: `maxSockets` at each. */
export class SocketPermits {
  readonly #max: number;
  readonly #origins = new Map<string, Origin>();

  constructor(maxSockets: number) {
    this.#max = maxSockets;
  }

  /** Calls `start` once, at once or when its turn has come; never after the permit's end. */
  enter(name: string, { id, weight }: Share, start: () => void): SocketPermit {
    const origin = this.#origins.get(name) ?? { lines: new Map<string, Line>(), taken: 0, served: 0 };
    const line = origin.lines.get(id) ?? { weight, taken: 0, last: 0, waiting: new Set() };
    this.#origins.set(name, origin);
    origin.lines.set(id, line);
    line.weight = weight;
    let state: 'waiting' | 'taken' | 'over' = 'waiting';
    const take = (): void => {
      state = 'taken';
      line.waiting.delete(take);
      line.taken += 1;
      origin.taken += 1;
      line.last = origin.served += 1;
      start();
    };
    // A workspace with waiting calls cannot take a permit now, or those calls would have it: the new call queues behind them.
    if (line.waiting.size === 0 && this.#mayTake(origin, line)) take();
    else line.waiting.add(take);
    return {
      end: () => {
        if (state === 'over') return;
        if (state === 'taken') {
          line.taken -= 1;
          origin.taken -= 1;
        }
        state = 'over';
        line.waiting.delete(take);
        this.#serve(origin);
        if (line.taken + line.waiting.size === 0) origin.lines.delete(id);
        if (origin.lines.size === 0) this.#origins.delete(name);
      },
    };
  }

  /** Gives out the permits that are free. */
  #serve(origin: Origin): void {
    for (;;) {
      const lines = [...origin.lines.values()].filter(
        (line) => line.waiting.size > 0 && this.#mayTake(origin, line),
      );
      if (lines.length === 0) return;
      const [next] = lines.reduce((best, line) => (isBefore(line, best) ? line : best)).waiting;
      next?.();
    }
  }

  #mayTake({ taken }: Origin, line: Line): boolean {
    return taken < this.#max - (line.taken === 0 ? 0 : Math.floor(this.#max * keptFree));
  }
}

function isBefore(one: Line, other: Line): boolean {
  const more = one.taken * other.weight - other.taken * one.weight;
  return more < 0 || (more === 0 && one.last < other.last);
}
