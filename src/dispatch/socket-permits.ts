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
/** Above this number of origins (of a wildcard) or workspaces, those without a call are forgotten. */
const pruneAbove = 1_000;

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
      forgetUnused(this.#origins);
      permits = new OriginPermits(this.#max);
      this.#origins.set(origin, permits);
    }
    return permits.enter(share, start);
  }
}

function forgetUnused(entries: Map<string, { readonly isUnused: boolean }>): void {
  if (entries.size < pruneAbove) return;
  for (const [name, { isUnused }] of entries) if (isUnused) entries.delete(name);
}

/** One workspace at one origin. */
class Line {
  weight = 1;
  taken = 0;
  /** Number, among all permits taken at the origin, of the workspace's latest one. */
  last = 0;
  /** Calls that wait, in the order of their coming. */
  readonly waiting = new Set<Permit>();

  get isUnused(): boolean {
    return this.taken === 0 && this.waiting.size === 0;
  }

  isBefore(other: Line): boolean {
    const more = this.taken * other.weight - other.taken * this.weight;
    return more < 0 || (more === 0 && this.last < other.last);
  }
}

class OriginPermits {
  readonly #max: number;
  readonly #lines = new Map<string, Line>();
  #taken = 0;
  #waiting = 0;
  #served = 0;

  constructor(max: number) {
    this.#max = max;
  }

  get isUnused(): boolean {
    return this.#taken === 0 && this.#waiting === 0;
  }

  enter({ id, weight }: Share, start: () => void): SocketPermit {
    let line = this.#lines.get(id);
    if (line === undefined) {
      forgetUnused(this.#lines);
      this.#lines.set(id, (line = new Line()));
    }
    line.weight = weight;
    const permit = new Permit(this, line, start);
    // A workspace with waiting calls cannot take a permit now, or those calls would have it: the new call queues behind them.
    if (line.waiting.size === 0 && this.#mayTake(line)) this.#take(permit);
    else {
      line.waiting.add(permit);
      this.#waiting += 1;
    }
    return permit;
  }

  /** A call that had a permit is over. */
  release(line: Line): void {
    line.taken -= 1;
    this.#taken -= 1;
    while (this.#waiting > 0) {
      const [next] = this.#nextLine()?.waiting ?? [];
      if (next === undefined) return;
      this.leave(next);
      this.#take(next);
    }
  }

  /** A call waits no longer. */
  leave(permit: Permit): void {
    if (permit.line.waiting.delete(permit)) this.#waiting -= 1;
  }

  #take(permit: Permit): void {
    permit.line.taken += 1;
    this.#taken += 1;
    permit.line.last = this.#served += 1;
    permit.begin();
  }

  /** The line that gets the next permit, if there is one for it. */
  #nextLine(): Line | null {
    let best: Line | null = null;
    for (const line of this.#lines.values()) {
      if (line.waiting.size === 0 || !this.#mayTake(line)) continue;
      if (best === null || line.isBefore(best)) best = line;
    }
    return best;
  }

  #mayTake({ taken }: Line): boolean {
    return this.#taken < this.#max - (taken === 0 ? 0 : Math.floor(this.#max * keptFree));
  }
}

class Permit implements SocketPermit {
  readonly line: Line;
  readonly #of: OriginPermits;
  readonly #start: () => void;
  #state: 'waiting' | 'taken' | 'over' = 'waiting';

  constructor(of: OriginPermits, line: Line, start: () => void) {
    this.#of = of;
    this.line = line;
    this.#start = start;
  }

  begin(): void {
    this.#state = 'taken';
    this.#start();
  }

  end(): void {
    const state = this.#state;
    this.#state = 'over';
    if (state === 'waiting') this.#of.leave(this);
    else if (state === 'taken') this.#of.release(this.line);
  }
}
