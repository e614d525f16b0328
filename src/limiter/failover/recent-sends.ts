/**
 * What this replica sent in the last window: enough to restore it in a Redis that lost its data or was unavailable. Invariant: nothing
 * older than a window is kept for longer than to the next send.
 */
import type { Clock } from '../../clock.ts';
import type { CeilingKey } from '../../ids.ts';
import { ceilingWindowMs } from '../policy/ceiling.policy.ts';

interface Send {
  readonly key: CeilingKey;
  readonly id: string;
  readonly at: number;
}

export class RecentSends {
  readonly #clock: Clock;
  /** By id, in the order of time. */
  readonly #sends = new Map<string, Send>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(key: CeilingKey, id: string): void {
    const at = this.#clock.monotonic();
    for (const old of this.#sends.values()) {
      if (at - old.at < ceilingWindowMs) break;
      this.#sends.delete(old.id);
    }
    // At the end, also when it was known.
    this.#sends.delete(id);
    this.#sends.set(id, { key, id, at });
  }

  remove(id: string): void {
    this.#sends.delete(id);
  }

  /** Ages in milliseconds and ids of each ceiling's sends. */
  all(): ReadonlyMap<CeilingKey, readonly { readonly id: string; readonly ageMs: number }[]> {
    const now = this.#clock.monotonic();
    const sends = [...this.#sends.values()]
      .map(({ key, id, at }) => ({ key, id, ageMs: now - at }))
      .filter(({ ageMs }) => ageMs < ceilingWindowMs);
    return Map.groupBy(sends, ({ key }) => key);
  }
}
