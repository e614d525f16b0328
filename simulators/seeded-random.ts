/** Repeatable random numbers: equal seeds give equal sequences (mulberry32). Not for secrets. */
import type { Random } from './clock.ts';

export class SeededRandom implements Random {
  #state: number;

  /** @param seed any whole number */
  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    const state = this.#state;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  }

  hex(bytes: number): string {
    let text = '';
    while (text.length < bytes * 2) {
      text += Math.floor(this.next() * 4_294_967_296)
        .toString(16)
        .padStart(8, '0');
    }
    return text.slice(0, bytes * 2);
  }
}
