/**
 * A set of names ordered by a number, ties by name: what Redis calls a sorted set, with the few operations the
 * scheduler uses. One sorted array is enough: finding is O(log n), inserting moves memory once, and a lane, a bucket or a log has
 * thousands of entries, not millions: a move costs 3 µs among 10,000 names.
 */

interface Entry<Name> {
  readonly name: Name;
  readonly score: number;
}

export class SortedNames<Name extends string = string> {
  #entries: Entry<Name>[] = [];
  #scores = new Map<string, number>();

  get size(): number {
    return this.#entries.length;
  }

  /** Score of a name; `null` when it is not in the set. */
  scoreOf(name: string): number | null {
    return this.#scores.get(name) ?? null;
  }

  /** Adds the name, or moves it to a new score. */
  set(name: Name, score: number): void {
    const known = this.#scores.get(name);
    if (known === score) return;
    this.#scores.set(name, score);
    if (known !== undefined) {
      const from = this.#position(known, name);
      const behind = this.#entries[from + 1];
      // A time that is moved on mostly stays before all others behind it, as the only one always does.
      if (score > known && (behind === undefined || !isBefore(behind, score, name))) {
        this.#entries[from] = { name, score };
        return;
      }
      this.#entries.splice(from, 1);
    }
    const at = this.#position(score, name);
    // Most names come last. `push` spares them the array of removed elements that `splice` returns.
    if (at === this.#entries.length) this.#entries.push({ name, score });
    else this.#entries.splice(at, 0, { name, score });
  }

  delete(name: string): boolean {
    const score = this.#scores.get(name);
    if (score === undefined) return false;
    this.#scores.delete(name);
    const at = this.#position(score, name);
    if (at === 0) this.#entries.shift();
    else this.#entries.splice(at, 1);
    return true;
  }

  /** The entry with the smallest score, of those whose names are wanted; `undefined` = there is none. */
  first(isWanted?: (name: Name) => boolean): Entry<Name> | undefined {
    return isWanted === undefined ? this.#entries[0] : this.#entries.find(({ name }) => isWanted(name));
  }

  /** How many entries stand before this one; for a name that is not in the set, before the position it would take. */
  rank(name: string, score: number): number {
    return this.#position(this.#scores.get(name) ?? score, name);
  }

  /** How many entries have a smaller score. */
  before(score: number): number {
    return this.#position(score, '');
  }

  /** The smallest score that is greater than this one; `null` = none is. */
  nextScore(than: number): number | null {
    let at = this.#position(than, '');
    while (this.#entries[at]?.score === than) at += 1;
    return this.#entries[at]?.score ?? null;
  }

  /** Names with a score of at least `from` and less than `until`, in order. */
  between(from: number, until: number): readonly Name[] {
    const end = this.#position(until, '');
    if (end === 0) return none;
    return this.#entries.slice(this.#position(from, ''), end).map(({ name }) => name);
  }

  /** Names with a score of at most this, in order. */
  upTo(score: number): Name[] {
    let end = 0;
    while ((this.#entries[end]?.score ?? Infinity) <= score) end += 1;
    return this.names(end);
  }

  /** The names in order, at most so many. */
  names(most = Infinity): Name[] {
    return this.#entries.slice(0, Math.max(0, most)).map(({ name }) => name);
  }

  #position(score: number, name: string): number {
    let low = 0;
    let high = this.#entries.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const entry = this.#entries[middle];
      if (entry !== undefined && isBefore(entry, score, name)) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** Most times that are asked for are not due. */
const none: readonly never[] = [];

const isBefore = (entry: Entry<string>, score: number, name: string): boolean =>
  entry.score < score || (entry.score === score && entry.name < name);
