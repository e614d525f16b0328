/**
 * Positions of calls whose clients left while the calls waited: a repeat of such a call gets the position back.
 * Owns: how long positions are remembered, and of how many calls.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';

/** A repeat that comes later than this after its call was left has the position of a new call. Milliseconds. */
export const positionKeptMs = 60_000;
const maxCalls = 100_000;

export class KeptPositions {
  readonly #clock: Clock;
  readonly #left = new LRUCache<string, { readonly arrivedAt: number; readonly leftAt: number }>({
    max: maxCalls,
  });

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** `arrivedAt`: monotonic milliseconds, the position of the call that was left. */
  leave(name: string, arrivedAt: number): void {
    this.#left.set(name, { arrivedAt, leftAt: this.#clock.monotonic() });
  }

  /** Arrival of the call that this one repeats; given out once. `null` = it repeats none that was left lately. */
  take(name: string): number | null {
    const left = this.#left.get(name);
    if (left === undefined) return null;
    this.#left.delete(name);
    return this.#clock.monotonic() - left.leftAt <= positionKeptMs ? left.arrivedAt : null;
  }
}
