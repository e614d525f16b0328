/**
 * How many commands one replica has on their way to Redis at once. A burst of thousands of calls would otherwise stand
 * in Redis' socket, where every command times out behind the others, is sent again, and makes the line longer: Redis
 * would seem unavailable to everybody because one workspace is busy.
 *
 * Owns: the line before Redis and its order: what ends or renews something before what begins, newcomers of different
 * lanes in turn. Refuses to own: repetition and time limits (`health.ts`).
 */
import type { LaneKey } from '../../../ids.ts';

/** So many are on their way at first; with each round trip in time one more, with each time-out half as many. */
const atFirst = 64;
/** Enough for 2,500 commands a second over a round trip of 100 ms. */
const most = 256;
const least = 8;

export interface CommandWindow {
  /** Enters if there is room. */
  tryEnter(): boolean;
  /** Resolves with true once it may be sent, with false when the line was sent away. `lane`: of a newcomer. */
  wait(lane: LaneKey | null): Promise<boolean>;
  /** Makes room again. `wasInTime`: false when the command timed out: Redis has more to do than time. */
  leave(wasInTime: boolean): void;
  /** Sends everybody in the line away. */
  dismiss(): void;
}

type Waiter = (isAdmitted: boolean) => void;

export function createCommandWindow(): CommandWindow {
  let size = atFirst;
  let underWay = 0;
  let first: Waiter[] = [];
  /** Lanes in the order in which they are served. */
  const newcomers = new Map<LaneKey, Waiter[]>();

  const next = (): Waiter | undefined => {
    const waiter = first.shift();
    if (waiter !== undefined) return waiter;
    for (const [lane, line] of newcomers) {
      const one = line.shift();
      newcomers.delete(lane);
      if (line.length > 0) newcomers.set(lane, line);
      return one;
    }
    return undefined;
  };

  return {
    tryEnter() {
      if (underWay + 1 > size) return false;
      underWay += 1;
      return true;
    },

    wait(lane) {
      return new Promise((resolve) => {
        if (lane === null) return void first.push(resolve);
        const line = newcomers.get(lane);
        if (line === undefined) newcomers.set(lane, [resolve]);
        else line.push(resolve);
      });
    },

    leave(wasInTime) {
      underWay -= 1;
      size = wasInTime ? Math.min(most, size + 1 / size) : Math.max(least, size / 2);
      while (underWay + 1 <= size) {
        const waiter = next();
        if (waiter === undefined) return;
        underWay += 1;
        waiter(true);
      }
    },

    dismiss() {
      const all = [...first, ...[...newcomers.values()].flat()];
      first = [];
      newcomers.clear();
      for (const waiter of all) waiter(false);
    },
  };
}
