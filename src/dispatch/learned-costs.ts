/**
 * What a GraphQL document costs, as its last answer told: the requested cost is a property of the document and its
 * numeric variables, so it need not be computed.
 *
 * Owns: one `DocumentCost` per document and bucket, which every call of the document shares, and whether somebody is
 * finding it out. Refuses to own: what waiting calls do about it (the desk). Bounded; keys are digests, no query text is
 * kept.
 */
import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';

/** Documents remembered per process. */
const maxDocuments = 10_000;

export class DocumentCost {
  #points: number | null = null;
  #isUnasked = true;
  #inquiry: PromiseWithResolvers<void> | null = null;

  /** Points the document asked for last time, or `null`. */
  get points(): number | null {
    return this.#points;
  }

  /** Nobody has gone ahead to find out. */
  get isUnasked(): boolean {
    return this.#isUnasked;
  }

  /** Resolves when the call that went ahead is over; `null` = none is on its way. */
  get inquiry(): Promise<void> | null {
    return this.#inquiry?.promise ?? null;
  }

  /** A call goes ahead to find out. */
  ask(): void {
    this.#isUnasked = false;
    this.#inquiry ??= Promise.withResolvers();
  }

  /** An answer told it. */
  tell(points: number): void {
    this.#points = points;
    this.over(true);
  }

  /** The call that went ahead is over; `asked` false: it was not sent. Repeating it does nothing. */
  over(asked: boolean): void {
    if (this.#inquiry === null) return;
    this.#isUnasked = !asked;
    this.#inquiry.resolve();
    this.#inquiry = null;
  }
}

export class LearnedCosts {
  readonly #costs = new LRUCache<string, DocumentCost>({ max: maxDocuments });

  /** What the document costs in this bucket, known or not. */
  of(bucket: string, costKey: string): DocumentCost {
    const key = createHash('sha256').update(bucket).update('\n').update(costKey).digest('base64');
    let cost = this.#costs.get(key);
    if (cost === undefined) this.#costs.set(key, (cost = new DocumentCost()));
    return cost;
  }
}
