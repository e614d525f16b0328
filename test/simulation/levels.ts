/**
 * What a workspace does within its turns (4, 5): its callers take turns, each with its calls in the order of their arrival, and its
 * background calls go behind the other calls of the bucket, but for one a minute. Owns: whether a grant is fair to other callers, and the
 * minute of the background. Does not own: which calls wait (the ledgers).
 */

/** While background calls wait, one of them is granted so often at least. Milliseconds. */
const minuteMs = 60_000;
/** Times that were added up are not exact. Milliseconds. */
const roundingMs = 1;

/** A caller of whom a call is granted, and what that takes of its share. */
export interface Served {
  readonly caller: string;
  readonly serviceMs: number;
}

/** Turns taken since both callers wait, and the largest of them; the one before counts, too. */
interface Turns {
  readonly since: number;
  units: number;
  largest: number;
}

/** Start-time fair queueing between the callers of one lane. */
export class CallerTurns {
  readonly #turns = new Map<string, Turns>();
  readonly #last = new Map<string, number>();

  /**
   * A call was granted. Says what is unfair about it: while two callers wait, their shares differ by the largest call of each at most, and
   * by one turn that did not take place. `waiting`: since when each caller waits; `from`: what was before does not count.
   */
  granted(
    { caller, serviceMs }: Served,
    waiting: ReadonlyMap<string, number>,
    { from, now }: { readonly from: number; readonly now: number },
  ): string | null {
    const before = this.#last.get(caller) ?? 0;
    this.#last.set(caller, serviceMs);
    let found: string | null = null;
    for (const [other, otherSince] of waiting) {
      const since = Math.max(from, otherSince, waiting.get(caller) ?? now);
      if (other === caller || since >= now) continue;
      const mine = this.#of(caller, other, { since, largest: before });
      const theirs = this.#of(other, caller, { since, largest: this.#last.get(other) ?? 0 });
      mine.units += serviceMs;
      mine.largest = Math.max(mine.largest, serviceMs);
      const lead = mine.units - theirs.units;
      if (lead > 2 * mine.largest + theirs.largest + 1e-6)
        found = `caller "${caller}" is ${lead.toFixed(2)} ahead of "${other}"`;
    }
    return found;
  }

  /** A turn did not take place, or the limits are others: shares are compared anew. */
  forget(): void {
    this.#turns.clear();
  }

  #of(caller: string, other: string, fresh: Omit<Turns, 'units'>): Turns {
    const key = `${caller}/${other}`;
    let turns = this.#turns.get(key);
    if (turns?.since !== fresh.since) this.#turns.set(key, (turns = { ...fresh, units: 0 }));
    return turns;
  }
}

/** The minute of a bucket's background. */
export class BackgroundMinute {
  /** When one of its calls was last granted; or since when calls wait, if that is later. */
  #since = -Infinity;

  /** The first call that waits has come. */
  begins(now: number): void {
    this.#since = now;
  }

  /** Returns what `notSent` takes if the call is not sent. */
  granted(now: number): number {
    const before = this.#since;
    this.#since = now;
    return before;
  }

  notSent(before: number): void {
    this.#since = Math.min(this.#since, before);
  }

  /** One of its calls goes before all others. */
  isDue(now: number): boolean {
    return now - this.#since >= minuteMs + roundingMs;
  }

  /** Its calls go behind all others. */
  isBehind(now: number): boolean {
    return now - this.#since < minuteMs - roundingMs;
  }
}
