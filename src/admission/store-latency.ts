/**
 * How long a store takes to answer, by its last answers. One slow answer is a stall, also of this process; a store is slow
 * when most of its answers are.
 */

/** How many of the last answers count. */
const remembered = 8;

export class StoreLatency {
  readonly #lastMs: number[] = [];
  #usualMs = 0;

  note(tookMs: number): void {
    this.#lastMs.push(tookMs);
    if (this.#lastMs.length > remembered) this.#lastMs.shift();
    const sorted = this.#lastMs.toSorted((a, b) => a - b);
    this.#usualMs = sorted[(sorted.length - 1) >> 1] ?? 0;
  }

  /** The lower median; 0 before the first answer. Milliseconds. */
  get usualMs(): number {
    return this.#usualMs;
  }

  /** Of the last answers; 0 before the first one. Milliseconds. */
  get maxMs(): number {
    return Math.max(0, ...this.#lastMs);
  }
}
