/** The breakers that are not closed, as far as this replica knows. Owns their bound. */
import type { BreakerId } from '../limiter/breaker-store.ts';
import { isForgotten, type Breaker } from './breaker.policy.ts';

/** The one that changed longest ago is forgotten first. */
const maxKnown = 10_000;

export interface KnownBreaker {
  readonly id: BreakerId;
  readonly state: Breaker;
  /** Version in the store; `''` = the store does not have the breaker. */
  readonly version: string;
}

export class KnownBreakers {
  readonly #byKey = new Map<string, KnownBreaker>();

  get size(): number {
    return this.#byKey.size;
  }

  get(key: string): KnownBreaker | undefined {
    return this.#byKey.get(key);
  }

  set(known: KnownBreaker): void {
    this.#byKey.delete(known.id.key);
    this.#byKey.set(known.id.key, known);
    const [oldest] = this.#byKey.keys();
    if (this.#byKey.size > maxKnown && oldest !== undefined) this.#byKey.delete(oldest);
  }

  delete(key: string): void {
    this.#byKey.delete(key);
  }

  /** Forgets breakers that no call has asked for in a long time (`isForgotten`). */
  forgetOld(now: number): void {
    for (const { id, state } of this) if (isForgotten(state, now)) this.#byKey.delete(id.key);
  }

  [Symbol.iterator](): Iterator<KnownBreaker> {
    return this.#byKey.values();
  }
}
