import { SeededRandom } from '../../simulators/seeded-random.ts';

/** Seeds from here on are histories with described windows; with backups and promotions of Redis; with callers and background; and such ones in which clients of refused calls come back, too. */
export const [describedFrom, replicatedFrom, levelsFrom, reservingFrom] = [
  10_000_000, 20_000_000, 30_000_000, 60_000_000,
] as const;

/** Seeded chance with the few shapes the histories need. */
export class Chance extends SeededRandom {
  constructor(seed: number) {
    super(Math.imul(seed, 0x9e3779b1) ^ 0x5bd1e995);
  }

  happens(probability: number): boolean {
    return this.next() < probability;
  }

  between(low: number, high: number): number {
    return low + (high - low) * this.next();
  }

  whole(low: number, high: number): number {
    return low + Math.floor(this.next() * (high - low + 1));
  }

  pick<T>(choices: readonly [T, ...T[]]): T {
    return choices[Math.floor(this.next() * choices.length)] ?? choices[0];
  }
}
