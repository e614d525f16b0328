/**
 * How long a store takes to answer, by its last responses. One slow response is a stall, also of this process; a store is slow
 * when most of its responses are.
 */

/** How many of the last responses count. */
const remembered = 8;

export class StoreLatency {
  readonly #lastMs: number[] = [];

  note(tookMs: number): void {
    this.#lastMs.push(tookMs);
    if (this.#lastMs.length > remembered) this.#lastMs.shift();
  }

  /** True when more than half of the last responses took longer than this. */
  isUsuallyOver(ms: number): boolean {
    let over = 0;
    for (const tookMs of this.#lastMs) if (tookMs > ms) over += 1;
    return over * 2 > this.#lastMs.length;
  }

  /** The longest of the last responses; 0 before the first one. Milliseconds. */
  get maxMs(): number {
    return Math.max(0, ...this.#lastMs);
  }
}
