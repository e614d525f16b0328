/**
 * A cache of readings, so that several readers at once share one. Owns for how long a reading is used and how many are kept;
 * does not own what is read. A reading that fails is not kept.
 */
import type { Clock } from '../clock.ts';

export class Remembered<T> {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #goodMs: number;
  readonly #max: number;
  /** The oldest reading first. */
  readonly #readings = new Map<string, { readonly at: number; readonly value: Promise<T> }>();

  /** A reading is used for `goodMs` after it began; at most `max` readings are kept. */
  constructor(clock: Pick<Clock, 'monotonic'>, goodMs: number, max: number) {
    this.#clock = clock;
    this.#goodMs = goodMs;
    this.#max = max;
  }

  /**
   * The reading of this name. Reads again when the last one is older than `goodMs` or began before `since` (monotonic
   * milliseconds).
   */
  of(name: string, read: () => Promise<T>, since: number | null = null): Promise<T> {
    const now = this.#clock.monotonic();
    const known = this.#readings.get(name);
    if (known !== undefined && now - known.at < this.#goodMs && known.at >= (since ?? known.at))
      return known.value;
    if (this.#readings.size >= this.#max) this.forgetOld();
    if (this.#readings.size >= this.#max) this.#readings.clear();
    const value = read();
    this.#readings.delete(name);
    this.#readings.set(name, { at: now, value });
    value.catch(() => {
      if (this.#readings.get(name)?.value === value) this.#readings.delete(name);
    });
    return value;
  }

  /** Drops expired readings, so that their memory is freed also while nobody reads activity. */
  forgetOld(): void {
    const now = this.#clock.monotonic();
    for (const [name, { at }] of this.#readings) {
      if (now - at < this.#goodMs) return;
      this.#readings.delete(name);
    }
  }
}
