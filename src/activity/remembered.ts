/**
 * What was read a moment ago, so that several readers at once share one reading. Owns for how long a reading is good
 * and how many are kept; does not own what is read. A reading that fails is not remembered.
 */
import type { Clock } from '../clock.ts';

export class Remembered<T> {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #goodMs: number;
  readonly #max: number;
  /** The oldest reading first. */
  readonly #readings = new Map<string, { readonly at: number; readonly value: Promise<T> }>();

  /** Readings are good for `goodMs`; at most `max` of them are kept. */
  constructor(clock: Pick<Clock, 'monotonic'>, goodMs: number, max: number) {
    this.#clock = clock;
    this.#goodMs = goodMs;
    this.#max = max;
  }

  /** The reading of this name, made again when it is not good any more or began before `since` (monotonic milliseconds). */
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

  /** Forgets what has expired, so that memory is given back while nobody reads activity. */
  forgetOld(): void {
    const now = this.#clock.monotonic();
    for (const [name, { at }] of this.#readings) {
      if (now - at < this.#goodMs) return;
      this.#readings.delete(name);
    }
  }
}
