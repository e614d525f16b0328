/**
 * A map for entries that come and go with every call.
 *
 * Owns: that what was taken out can be collected at once. Does not own: anything a plain `Map` does as well.
 * Why: V8 chains the tables that a `Map` or `Set` has outgrown, and an outgrown table in the old generation keeps what
 * it once held alive until the next full collection. Under a steady coming and going a quarter of all that a call
 * allocates then survives and is copied by every collection of young objects. Here an outgrown table only reaches empty
 * boxes. (A `WeakMap` whose keys are not deleted does the same.)
 */
interface Box<V> {
  value: V | undefined;
}

export class ShortLived<K extends string | number, V extends object> {
  readonly #boxes = new Map<K, Box<V>>();

  get size(): number {
    return this.#boxes.size;
  }

  get(key: K): V | undefined {
    return this.#boxes.get(key)?.value;
  }

  set(key: K, value: V): void {
    const box = this.#boxes.get(key);
    if (box === undefined) this.#boxes.set(key, { value });
    else box.value = value;
  }

  /** True when it was there. */
  delete(key: K): boolean {
    const box = this.#boxes.get(key);
    if (box === undefined) return false;
    box.value = undefined;
    return this.#boxes.delete(key);
  }

  /** Values in the order of their keys' arrival; what is deleted meanwhile is left out. */
  *values(): Generator<V, void> {
    for (const { value } of this.#boxes.values()) if (value !== undefined) yield value;
  }
}
