/**
 * What became of each call: what its client saw, against what the upstream did. Owns the two promises: no call of a client that
 * stayed is lost, and none is made twice.
 */

import { tally } from '../report.ts';

/** How a call ended for its client. */
export type Fate =
  | { readonly kind: 'answered' }
  /** The client hung up. */
  | { readonly kind: 'left' }
  /** A response said that the upstream failed. */
  | { readonly kind: 'failed'; readonly words: string }
  /** The connection broke because the replica was killed, and repeating is not safe. */
  | { readonly kind: 'killed' }
  /** Nothing excuses it. */
  | { readonly kind: 'lost'; readonly words: string };

export interface Made {
  /** Times the upstream did the work. */
  times: number;
  /** The upstream broke off, or refused, an attempt. */
  isFaulted: boolean;
}

export interface Ended {
  readonly nonce: string;
  readonly fate: Fate;
  /** Making it again does no harm, by method or by idempotency key. */
  readonly isRepeatable: boolean;
  /** Attempts that died with their replica. */
  readonly killedAttempts: number;
}

/** With whether the upstream is to blame. */
interface Judged extends Ended {
  readonly isExcused: boolean;
}

const never: Made = { times: 0, isFaulted: false };

export class Ledger {
  readonly #made = new Map<string, Made>();
  readonly #ended: Judged[] = [];

  /** What the upstream knows of this call. */
  of(nonce: string): Made {
    const known = this.#made.get(nonce) ?? { ...never };
    this.#made.set(nonce, known);
    return known;
  }

  /** Whether the upstream may be to blame for how the call ended. */
  isExcused(nonce: string): boolean {
    return this.of(nonce).isFaulted;
  }

  ended(call: Ended): void {
    this.#ended.push({ ...call, isExcused: this.isExcused(call.nonce) });
  }

  /** Calls that were lost, and why. */
  lost(): readonly string[] {
    return this.#ended.flatMap(({ nonce, fate, isExcused }) => {
      const { times } = this.#made.get(nonce) ?? never;
      if (fate.kind === 'lost') return [`${nonce}: ${fate.words}`];
      if (fate.kind === 'answered' && times === 0)
        return [`${nonce}: answered, and the upstream never saw it`];
      if (fate.kind === 'failed' && !isExcused)
        return [`${nonce}: ${fate.words}, and the upstream did nothing wrong`];
      return [];
    });
  }

  /** Calls that were made more often than anything excuses. */
  twice(): readonly string[] {
    return this.#ended.flatMap(({ nonce, isRepeatable, killedAttempts, isExcused }) => {
      const { times } = this.#made.get(nonce) ?? never;
      const excused = isRepeatable ? killedAttempts + (isExcused ? 1 : 0) : 0;
      return times > 1 + excused ? [`${nonce}: made ${times} times`] : [];
    });
  }

  /** Calls by how they ended, as `answered ×3, left ×1`. */
  summary(): string {
    const fates = this.#ended.map(({ fate }) =>
      fate.kind === 'failed' ? `${fate.kind} (${fate.words})` : fate.kind,
    );
    return `${fates.length} calls: ${tally(fates)}`;
  }
}
