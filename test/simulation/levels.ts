/**
 * What a workspace does within its turns (4, 5): its callers take turns, each with its calls in the order of their arrival, and its
 * background calls go behind the other calls of the bucket, but for one a minute. Owns: whether a grant is fair to other callers, and the
 * minute of the background. Does not own: which calls wait (the ledgers).
 */

/** While background calls wait, one of them is granted so often at least. Milliseconds. */
const minuteMs = 60_000;
/** Times that were added up are not exact. Milliseconds. */
const roundingMs = 1;

/** Who is granted a call, and what that takes of its share. */
export interface Served {
  readonly who: string;
  readonly serviceMs: number;
  /** What the next turn begins behind at most. Absent: the same. */
  readonly lastMs?: number;
}

/** Turns taken since both wait, and the largest of them; the one before counts, too. */
interface Taken {
  readonly since: number;
  units: number;
  largest: number;
}

/** Start-time fair queueing: of lanes in a bucket, and of callers in a lane. */
export class Turns {
  readonly #taken = new Map<string, Taken>();
  readonly #last = new Map<string, number>();
  readonly #lost: number;

  /** @param lost so many turns of either may not have taken place */
  constructor(lost: number) {
    this.#lost = lost;
  }

  /**
   * A call was granted. Says what is unfair about it: while two wait, their shares differ by the largest call of each at most, and by the
   * turns that did not take place. `waiting`: since when each waits; `from`: what was before does not count.
   */
  granted(
    { who, serviceMs, lastMs = serviceMs }: Served,
    waiting: ReadonlyMap<string, number>,
    { from, now }: { readonly from: number; readonly now: number },
  ): string | null {
    const before = this.#last.get(who) ?? 0;
    this.#last.set(who, lastMs);
    let found: string | null = null;
    for (const [other, otherSince] of waiting) {
      const since = Math.max(from, otherSince, waiting.get(who) ?? now);
      if (other === who || since >= now) continue;
      const mine = this.#of(who, other, { since, largest: before });
      const theirs = this.#of(other, who, { since, largest: this.#last.get(other) ?? 0 });
      mine.units += serviceMs;
      mine.largest = Math.max(mine.largest, serviceMs);
      const lead = mine.units - theirs.units;
      if (lead > (1 + this.#lost) * mine.largest + theirs.largest + 1e-6)
        found = `"${who}" is ${lead.toFixed(2)} ahead of "${other}"`;
    }
    return found;
  }

  /** A turn did not take place, or the limits are others: shares are compared anew. */
  forget(): void {
    this.#taken.clear();
  }

  #of(who: string, other: string, fresh: Omit<Taken, 'units'>): Taken {
    const key = `${who}/${other}`;
    let taken = this.#taken.get(key);
    if (taken?.since !== fresh.since) this.#taken.set(key, (taken = { ...fresh, units: 0 }));
    return taken;
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
