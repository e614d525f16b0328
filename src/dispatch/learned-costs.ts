/**
 * What a GraphQL document cost when it was last asked: the requested cost is a property of the document and its
 * numeric variables, so it need not be computed. Bounded; keys are digests, no query text is kept.
 */
import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';

/** Documents remembered per process. */
const maxDocuments = 10_000;

export class LearnedCosts {
  readonly #costs = new LRUCache<string, number>({ max: maxDocuments });

  /** Points the document reserved last time, or `null`. */
  of(scope: string, costKey: string): number | null {
    return this.#costs.get(keyOf(scope, costKey)) ?? null;
  }

  learn(scope: string, costKey: string, requestedCost: number): void {
    this.#costs.set(keyOf(scope, costKey), requestedCost);
  }
}

const keyOf = (scope: string, costKey: string): string =>
  createHash('sha256').update(scope).update('\n').update(costKey).digest('base64');
