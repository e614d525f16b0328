/**
 * Where a clock begins. The policies may assume nothing about that: a process counts from its own start, Redis from 1970.
 * A number that stands for "never" looks like a time near one origin and like none near another, so that tests at a single
 * origin cannot see it; policy tests and simulation therefore take place at all of these.
 */

const dayMs = 86_400_000;

export interface Origin {
  readonly name: string;
  /** What the clock shows when the test begins. Milliseconds. */
  readonly ms: number;
}

/** A process that has just started, one that has been up for days, and a server's clock. */
export const origins: readonly [Origin, Origin, Origin] = [
  { name: 'a clock that begins now', ms: 0 },
  { name: 'a clock that began 6.3 days ago', ms: 6.3 * dayMs },
  { name: 'a clock that began in 1970', ms: Date.UTC(2026, 8, 22) + 0.125 },
];

/** Processes run for this long at most in histories. Milliseconds. */
export const maxUptimeMs = 30 * dayMs;

/**
 * The origin of the clock of a seeded history: a third each begins at 0, up to 30 days ago, and in 1970.
 *
 * @param share of [0, 1), which spreads the second kind.
 */
export function originOf(seed: number, share: number): Origin {
  const [fresh, , epoch] = origins;
  switch (((seed % 3) + 3) % 3) {
    case 0:
      return fresh;
    case 1: {
      // Fractions of a millisecond, as a monotonic clock has them.
      const ms = Math.round(share * maxUptimeMs * 1_024) / 1_024;
      return { name: `a clock that began ${(ms / dayMs).toFixed(1)} days ago`, ms };
    }
    default:
      return epoch;
  }
}
