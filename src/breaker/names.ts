/**
 * Names of breakers: keyed digests, the same on every replica. Owns: from the parts of a call to a name. Does not own:
 * which parts a refusal concerns (`concern.policy.ts`).
 */
import type { BreakerSubject } from '../call.ts';
import { digest } from '../identity.ts';
import type { BreakerId } from '../limiter/breaker-store.ts';
import { concerns, partsOf, type Concern } from './concern.policy.ts';

export class BreakerNames {
  readonly #labelKey: string;
  /** A waiting call is asked about again and again. */
  readonly #made = new WeakMap<BreakerSubject, Map<Concern, BreakerId>>();

  constructor(labelKey: string) {
    this.#labelKey = labelKey;
  }

  /** Every breaker that may concern the call. */
  *of(subject: BreakerSubject): Iterable<BreakerId> {
    for (const concern of concerns) {
      const id = this.name(subject, concern);
      if (id !== null) yield id;
    }
  }

  /** `null`: the call has no part of this kind. */
  name(subject: BreakerSubject, concern: Concern): BreakerId | null {
    const parts = partsOf(subject, concern);
    if (parts === null) return null;
    let made = this.#made.get(subject);
    if (made === undefined) this.#made.set(subject, (made = new Map<Concern, BreakerId>()));
    let id = made.get(concern);
    if (id === undefined) {
      const { upstream, credential } = subject;
      const key = this.#digest(concern, upstream, credential, ...parts);
      id = { key, upstream: this.upstream(upstream), credential: this.credential(upstream, credential) };
      made.set(concern, id);
    }
    return id;
  }

  upstream(name: string): string {
    return this.#digest('upstream', name);
  }

  credential(upstream: string, identity: string): string {
    return this.#digest('owner', upstream, identity);
  }

  #digest(purpose: string, ...parts: readonly string[]): string {
    return digest(this.#labelKey, `breaker ${purpose}`, ...parts);
  }
}
