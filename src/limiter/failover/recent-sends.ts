/**
 * What this replica sent in the last window, by ceiling: enough to restore it in a Redis that lost its data or was
 * unavailable. Invariant: nothing older than a window is kept.
 */
import type { Clock } from '../../clock.ts';
import type { CeilingKey } from '../../ids.ts';
import { ceilingWindowMs } from '../policy/ceiling.policy.ts';

export class RecentSends {
  readonly #clock: Clock;
  readonly #sends = new Map<CeilingKey, Map<string, number>>();
  #sweepAt = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(key: CeilingKey, id: string): void {
    const now = this.#clock.monotonic();
    this.#sweep(now);
    let sends = this.#sends.get(key);
    if (sends === undefined) this.#sends.set(key, (sends = new Map()));
    // At the end, also when it was known: the entries are in the order of time.
    sends.delete(id);
    sends.set(id, now);
  }

  remove(key: CeilingKey, id: string): void {
    this.#sends.get(key)?.delete(id);
  }

  /** Ages in milliseconds and ids of one ceiling's sends. */
  *all(): Iterable<{ readonly key: CeilingKey; readonly sends: readonly { id: string; ageMs: number }[] }> {
    const now = this.#clock.monotonic();
    for (const [key, sends] of this.#sends) {
      const recent = [...sends]
        .map(([id, at]) => ({ id, ageMs: now - at }))
        .filter(({ ageMs }) => ageMs < ceilingWindowMs);
      if (recent.length > 0) yield { key, sends: recent };
    }
  }

  /** A few times a window, and only over what has aged: sends are in the order of time. */
  #sweep(now: number): void {
    if (now < this.#sweepAt) return;
    this.#sweepAt = now + ceilingWindowMs / 8;
    for (const [key, sends] of this.#sends) {
      for (const [id, at] of sends) {
        if (now - at < ceilingWindowMs) break;
        sends.delete(id);
      }
      if (sends.size === 0) this.#sends.delete(key);
    }
  }
}
