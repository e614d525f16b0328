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
  /** Calls that wait, in the order of their coming. */
  readonly waiting: Set<QueuedPermit>;
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
      line = { weight, taken: 0, last: 0, waiting: new Set() };
      this.#lines.set(workspace, line);
    }
    line.weight = weight;
    const permit = new QueuedPermit(this, line, start);
    // A workspace with waiting calls cannot take a permit now, or those calls would have it: the new call queues behind them.
    if (line.waiting.size === 0 && this.#mayTake(line)) this.#take(line, permit);
    else {
      line.waiting.add(permit);
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
      const [permit] = next?.waiting ?? [];
      if (next === null || permit === undefined) return;
      this.leave(next, permit);
      this.#take(next, permit);
    }
  }

  /** A call waits no longer. */
  leave(line: Line, permit: QueuedPermit): void {
    if (line.waiting.delete(permit)) this.#waiting -= 1;
  }

  #take(line: Line, permit: QueuedPermit): void {
    line.taken += 1;
    this.#taken += 1;
    line.last = this.#served += 1;
    permit.begin();
  }

  /** The line that gets the next permit, if there is one for it. */
  #next(): Line | null {
    let best: Line | null = null;
    for (const line of this.#lines.values()) {
      if (line.waiting.size === 0 || !this.#mayTake(line)) continue;
      if (best === null || isBefore(line, best)) best = line;
    }
    return best;
  }

  #mayTake({ taken }: Line): boolean {
    return this.#taken < (taken === 0 ? this.#max : this.#max - this.#kept);
  }

  #forgetUnused(): void {
    for (const [workspace, { taken, waiting }] of this.#lines)
      if (taken === 0 && waiting.size === 0) this.#lines.delete(workspace);
  }
}

function isBefore(one: Line, other: Line): boolean {
  const more = one.taken * other.weight - other.taken * one.weight;
  return more < 0 || (more === 0 && one.last < other.last);
}

class QueuedPermit implements SocketPermit {
  readonly #of: OriginPermits;
  readonly #line: Line;
  readonly #start: () => void;
  #state: 'waiting' | 'taken' | 'over' = 'waiting';

  constructor(of: OriginPermits, line: Line, start: () => void) {
    this.#of = of;
    this.#line = line;
    this.#start = start;
  }

  begin(): void {
    this.#state = 'taken';
    this.#start();
  }

  end(): void {
    const state = this.#state;
    this.#state = 'over';
    if (state === 'waiting') this.#of.leave(this.#line, this);
    else if (state === 'taken') this.#of.releasePermit(this.#line);
  }
}
