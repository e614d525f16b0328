/**
 * Decides which waiting call gets the next socket of an upstream. Node's pool serves calls in the order in which they come, so
 * that ten thousand calls of one workspace would be served before those of all others.
 *
 * Owns: how many exchanges go on per origin, and whose is next. Does not own: sockets (`agents.ts`), how long a call may
 * wait for one (its exchange's connect limit). Keeps: the workspace with the fewest permits for its weight is next, of
 * several the one whose latest permit is the oldest; calls of one workspace keep their order; a single busy workspace leaves a
 * few permits free for others; no call waits while a permit is free that its workspace may have.
 */

/** This share of all permits is kept for workspaces that hold none. Rounded down, so that fewer than 16 permits keep nothing. */
const keptFree = 1 / 16;
/** Origins under a wildcard are many: above this number of entries, those without a call are forgotten. */
const pruneAbove = 1_000;

/** The workspace that a call belongs to, with its weight. */
export interface Share {
  readonly workspace: string;
  /** A workspace of weight 2 may have twice as many permits as one of weight 1 before it comes after it. */
  readonly weight: number;
}

/** One workspace at one origin. */
interface Line {
  weight: number;
  taken: number;
  /** Number, among all permits taken at the origin, of the workspace's latest one. */
  last: number;
  /** Calls in the order of their coming; those that left stay until they would be next. */
  queue: QueuedPermit[];
  /** Index in `queue` of the first call that may still wait. */
  head: number;
  /** How many calls in `queue` still wait. */
  waiting: number;
}

/** A call's permit, or its wait for one. */
export interface SocketPermit {
  /** Ends the permit, or the wait for it. A second end does nothing. */
  end(): void;
}

/** The permits of one pool, by origin: `maxSockets` at each. */
export class SocketPermits {
  readonly #max: number;
  readonly #origins = new Map<string, OriginPermits>();

  constructor(maxSockets: number) {
    this.#max = maxSockets;
  }

  /** Calls `start` once, at once or when its turn has come; never after the permit's end. */
  enter(origin: string, share: Share, start: () => void): SocketPermit {
    let permits = this.#origins.get(origin);
    if (permits === undefined) {
      if (this.#origins.size >= pruneAbove) this.#forgetUnused();
      permits = new OriginPermits(this.#max);
      this.#origins.set(origin, permits);
    }
    return permits.enter(share, start);
  }

  #forgetUnused(): void {
    for (const [origin, permits] of this.#origins) if (permits.isUnused) this.#origins.delete(origin);
  }
}

class OriginPermits {
  readonly #max: number;
  readonly #kept: number;
  readonly #lines = new Map<string, Line>();
  #taken = 0;
  #waiting = 0;
  #served = 0;

  constructor(max: number) {
    this.#max = max;
    this.#kept = Math.floor(max * keptFree);
  }

  get isUnused(): boolean {
    return this.#taken === 0 && this.#waiting === 0;
  }

  enter({ workspace, weight }: Share, start: () => void): SocketPermit {
    let line = this.#lines.get(workspace);
    if (line === undefined) {
      if (this.#lines.size >= pruneAbove) this.#forgetUnused();
      line = { weight, taken: 0, last: 0, queue: [], head: 0, waiting: 0 };
      this.#lines.set(workspace, line);
    }
    line.weight = weight;
    const permit = new QueuedPermit(this, line, start);
    // A workspace with waiting calls cannot take a permit now, or those calls would have it: the new call queues behind them.
    if (line.waiting === 0 && this.#mayTake(line)) this.#take(line, permit);
    else {
      line.queue.push(permit);
      line.waiting += 1;
      this.#waiting += 1;
    }
    return permit;
  }

  /** A call that had a permit is over. */
  releasePermit(line: Line): void {
    line.taken -= 1;
    this.#taken -= 1;
    while (this.#waiting > 0) {
      const next = this.#next();
      if (next === null) return;
      const permit = next.queue[next.head];
      next.head += 1;
      if (permit === undefined) return;
      if (permit.isOver) continue;
      this.#stopWaiting(next);
      this.#take(next, permit);
    }
  }

  /** A call waits no longer. */
  leave(line: Line): void {
    this.#stopWaiting(line);
  }

  #take(line: Line, permit: QueuedPermit): void {
    line.taken += 1;
    line.last = this.#served += 1;
    this.#taken += 1;
    permit.begin();
  }

  #stopWaiting(line: Line): void {
    line.waiting -= 1;
    this.#waiting -= 1;
    // Calls that left are removed when the queue is more than twice as long as the number of calls that wait.
    if (line.queue.length <= 2 * line.waiting) return;
    line.queue = line.queue.slice(line.head).filter((permit) => !permit.isOver);
    line.head = 0;
  }

  /** The line that gets the next permit, if there is one for it. */
  #next(): Line | null {
    let best: Line | null = null;
    for (const line of this.#lines.values()) {
      if (line.waiting === 0 || !this.#mayTake(line)) continue;
      if (best === null || isBefore(line, best)) best = line;
    }
    return best;
  }

  #mayTake({ taken }: Line): boolean {
    return this.#taken < (taken === 0 ? this.#max : this.#max - this.#kept);
  }

  #forgetUnused(): void {
    for (const [workspace, { taken, waiting }] of this.#lines)
      if (taken === 0 && waiting === 0) this.#lines.delete(workspace);
  }
}

function isBefore(one: Line, other: Line): boolean {
  const more = one.taken * other.weight - other.taken * one.weight;
  return more < 0 || (more === 0 && one.last < other.last);
}

class QueuedPermit implements SocketPermit {
  readonly #of: OriginPermits;
  readonly #line: Line;
  #start: (() => void) | null;
  #isOver = false;

  constructor(of: OriginPermits, line: Line, start: () => void) {
    this.#of = of;
    this.#line = line;
    this.#start = start;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  begin(): void {
    const start = this.#start;
    this.#start = null;
    start?.();
  }

  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const waited = this.#start !== null;
    this.#start = null;
    if (waited) this.#of.leave(this.#line);
    else this.#of.releasePermit(this.#line);
  }
}
