/**
 * How many commands one replica has on their way to Redis at once. A burst of thousands of calls would otherwise stand
 * in Redis' socket, where every command times out behind the others, is sent again, and makes the line longer: Redis
 * would seem unavailable to everybody because one workspace is busy.
 *
 * Owns: the line before Redis and its order: what ends or renews something before what begins, arriving calls of
 * different lanes in rotation. Does not own: repetition and time limits (`health.ts`).
 */
import type { LaneKey } from '../ids.ts';

/** So many are on their way at first; with each round trip in time one more, with each time-out half as many. */
const atFirst = 64;
/** Enough for 2,500 commands a second over a round trip of 100 ms. */
const maxSize = 256;
const minSize = 8;

type Waiter = (isAdmitted: boolean) => void;

export class CommandWindow {
  #size = atFirst;
  #underWay = 0;
  #first: Waiter[] = [];
  /** Commands that bring arriving calls, by lane; lanes in the order in which they are served. */
  readonly #arriving = new Map<LaneKey, Waiter[]>();

  /** Counts one more command as under way, if the window has room; false = it has none. */
  tryEnter(): boolean {
    if (this.#underWay + 1 > this.#size) return false;
    this.#underWay += 1;
    return true;
  }

  /** Resolves with true once the command may be sent, with false when the line was dismissed. `lane`: that of an arriving call. */
  wait(lane: LaneKey | null): Promise<boolean> {
    return new Promise((resolve) => {
      if (lane === null) return void this.#first.push(resolve);
      const line = this.#arriving.get(lane);
      if (line === undefined) this.#arriving.set(lane, [resolve]);
      else line.push(resolve);
    });
  }

  /** Makes room again. `wasInTime`: false when the command timed out: Redis has more to do than time. */
  leave(wasInTime: boolean): void {
    this.#underWay -= 1;
    this.#size = wasInTime
      ? Math.min(maxSize, this.#size + 1 / this.#size)
      : Math.max(minSize, this.#size / 2);
    while (this.#underWay + 1 <= this.#size) {
      const waiter = this.#next();
      if (waiter === undefined) return;
      this.#underWay += 1;
      waiter(true);
    }
  }

  /** Resolves everybody in the line with false. */
  dismiss(): void {
    const all = [...this.#first, ...[...this.#arriving.values()].flat()];
    this.#first = [];
    this.#arriving.clear();
    for (const waiter of all) waiter(false);
  }

  #next(): Waiter | undefined {
    const waiter = this.#first.shift();
    if (waiter !== undefined) return waiter;
    for (const [lane, line] of this.#arriving) {
      const one = line.shift();
      this.#arriving.delete(lane);
      if (line.length > 0) this.#arriving.set(lane, line);
      return one;
    }
    return undefined;
  }
}
