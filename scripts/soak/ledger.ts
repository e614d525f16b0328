/**
 * What became of each call: what its client saw, against what the upstream did. Owns the two promises: no call of a client that
 * stayed is lost, and none is made twice.
 */

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
  /** Monotonic milliseconds of its first arrival at the upstream. */
  arrivedAt: number | null;
  /** And of its latest. */
  latestAt: number | null;
  /** Monotonic milliseconds at which the upstream ended its latest response. */
  answeredAt: number | null;
}

export interface Ended {
  readonly nonce: string;
  readonly fate: Fate;
  /** Making it again does no harm, by method or by idempotency key. */
  readonly isRepeatable: boolean;
  /** Attempts that died with their replica. */
  readonly killedAttempts: number;
  /** Monotonic milliseconds of the first attempt. */
  readonly startedAt: number;
}

/** With whether the upstream, or the way to it, is to blame. */
interface Judged extends Ended {
  readonly isExcused: boolean;
}

const never: Made = { times: 0, isFaulted: false, arrivedAt: null, latestAt: null, answeredAt: null };

export class Ledger {
  readonly #made = new Map<string, Made>();
  readonly #ended: Judged[] = [];
  #isHarmed = false;
  #harmedUntil = -Infinity;

  /** What the upstream knows of this call. */
  of(nonce: string): Made {
    const known = this.#made.get(nonce) ?? { ...never };
    this.#made.set(nonce, known);
    return known;
  }

  /** The way to the upstream breaks connections from now on, or does so no more: no call that is under way meanwhile proves anything. */
  harm(isHarmed: boolean): void {
    this.#isHarmed = isHarmed;
    this.#harmedUntil = performance.now();
  }

  /** Whether the upstream, or the way to it, may be to blame for a call that was sent first at this time. */
  isExcused(nonce: string, startedAt: number): boolean {
    return this.of(nonce).isFaulted || this.#isHarmed || startedAt <= this.#harmedUntil;
  }

  ended(call: Ended): void {
    this.#ended.push({ ...call, isExcused: this.isExcused(call.nonce, call.startedAt) });
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

  /**
   * Of calls that are sent one after the other, those that came to the upstream behind one which its client had sent more than so many
   * milliseconds after them. Calls that were sent again, or answered by nobody, have no order.
   */
  overtaken(nonces: ReadonlySet<string>, spacingMs: number): number {
    const arrivals = this.#ended
      .filter(({ nonce, fate }) => nonces.has(nonce) && fate.kind === 'answered')
      .map(({ nonce, startedAt }) => ({ startedAt, arrivedAt: this.of(nonce).arrivedAt ?? 0 }))
      .toSorted((a, b) => a.arrivedAt - b.arrivedAt);
    let latest = -Infinity;
    return arrivals.filter(({ startedAt }) => {
      latest = Math.max(latest, startedAt);
      return startedAt + spacingMs < latest;
    }).length;
  }

  /** Calls by how they ended, as `answered ×3, left ×1`. */
  summary(): string {
    const counts = new Map<string, number>();
    for (const { fate } of this.#ended) {
      const name = fate.kind === 'failed' ? `${fate.kind} (${fate.words})` : fate.kind;
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    return `${this.#ended.length} calls: ${[...counts].map(([name, times]) => `${name} ×${times}`).join(', ')}`;
  }
}
