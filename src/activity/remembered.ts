/** A cache of readings, so that several readers at once share one. A reading that fails is not kept. */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';

interface Reading<T> {
  /** When it began, monotonic milliseconds. */
  readonly at: number;
  readonly value: Promise<T>;
}

export class Remembered<T> {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #goodMs: number;
  readonly #readings: LRUCache<string, Reading<T>>;

  /** A reading is used for `goodMs` after it began; at most `max` readings are kept. */
  constructor(clock: Pick<Clock, 'monotonic'>, goodMs: number, max: number) {
    this.#clock = clock;
    this.#goodMs = goodMs;
    this.#readings = new LRUCache({ max });
  }

  /** The reading of this name. Reads again when the last one is old or began before `since` (monotonic milliseconds). */
  of(name: string, read: () => Promise<T>, since = 0): Promise<T> {
    const at = this.#clock.monotonic();
    const known = this.#readings.get(name);
    if (known !== undefined && this.#isGood(known, at) && known.at >= since) return known.value;
    const reading = { at, value: read() };
    this.#readings.set(name, reading);
    reading.value.catch(() => {
      if (this.#readings.peek(name) === reading) this.#readings.delete(name);
    });
    return reading.value;
  }

  /** Drops old readings, so that their memory is freed also while nobody reads activity. */
  forgetOld(): void {
    const now = this.#clock.monotonic();
    for (const [name, reading] of this.#readings.entries())
      if (!this.#isGood(reading, now)) this.#readings.delete(name);
  }

  #isGood({ at }: Reading<T>, now: number): boolean {
    return now - at < this.#goodMs;
  }
}
