/**
 * Names by the time at which something is due, the earliest first, ties by name. A binary heap: there may be tens of thousands of
 * names, and every call moves one of them (`policy/sorted.policy.ts` moves memory for that, half of all names at a time).
 */
interface Due<Name> {
  readonly name: Name;
  readonly at: number;
}

export class DueTimes<Name extends string> {
  #heap: Due<Name>[] = [];
  #places = new Map<Name, number>();

  /** `null` = nothing is due for the name. */
  timeOf(name: Name): number | null {
    const place = this.#places.get(name);
    return place === undefined ? null : (this.#heap[place]?.at ?? null);
  }

  /** The earliest, or `undefined`. */
  first(): Due<Name> | undefined {
    return this.#heap[0];
  }

  /** Adds the name, or moves it to another time. */
  set(name: Name, at: number): void {
    this.#settle({ name, at }, this.#places.get(name) ?? this.#heap.length);
  }

  delete(name: Name): void {
    const place = this.#places.get(name);
    if (place === undefined) return;
    this.#places.delete(name);
    const last = this.#heap.pop();
    if (last !== undefined && last.name !== name) this.#settle(last, place);
  }

  /** In no order that means anything. Entered in this order, they make the same heap. */
  entries(): readonly Due<Name>[] {
    return this.#heap;
  }

  /** Another one with the same names and times. */
  duplicate(): DueTimes<Name> {
    const other = new DueTimes<Name>();
    other.#heap = [...this.#heap];
    other.#places = new Map(this.#places);
    return other;
  }

  /** Puts a name where it belongs, up or down from a place that is free. */
  #settle(due: Due<Name>, free: number): void {
    let place = free;
    for (;;) {
      const parent = (place - 1) >> 1;
      const above = this.#heap[parent];
      if (place === 0 || above === undefined || !isBefore(due, above)) break;
      this.#put(above, place);
      place = parent;
    }
    for (;;) {
      const child = this.#earlierChild(place);
      const below = this.#heap[child];
      if (below === undefined || !isBefore(below, due)) break;
      this.#put(below, place);
      place = child;
    }
    this.#put(due, place);
  }

  #earlierChild(place: number): number {
    const [left, right] = [2 * place + 1, 2 * place + 2];
    const [one, other] = [this.#heap[left], this.#heap[right]];
    return one !== undefined && other !== undefined && isBefore(other, one) ? right : left;
  }

  #put(due: Due<Name>, place: number): void {
    this.#heap[place] = due;
    this.#places.set(due.name, place);
  }
}

const isBefore = (one: Due<string>, other: Due<string>): boolean =>
  one.at < other.at || (one.at === other.at && one.name < other.name);
