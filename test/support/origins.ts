/**
 * Where a clock begins. The policies may assume nothing about that: a number that stands for "never" looks like a time near one
 * origin and like none near another. Policy tests and simulation take place at all of these.
 */

const dayMs = 86_400_000;

export interface Origin {
  readonly name: string;
  readonly ms: number;
}

export const origins: readonly [Origin, Origin, Origin] = [
  { name: 'a clock that begins now', ms: 0 },
  { name: 'a clock that began 6.3 days ago', ms: 6.3 * dayMs },
  { name: 'a clock that began in 1970', ms: Date.UTC(2026, 8, 22) + 0.125 },
];

/** Processes run for this long at most in histories. Milliseconds. */
export const maxUptimeMs = 30 * dayMs;

/** The origin of a seeded history: a third each begins at 0, up to 30 days ago (that `share` of them), and in 1970. */
export function originOf(seed: number, share: number): Origin {
  const [fresh, , epoch] = origins;
  const kind = ((seed % 3) + 3) % 3;
  if (kind !== 1) return kind === 0 ? fresh : epoch;
  // Fractions of a millisecond, as a monotonic clock has them.
  const ms = Math.round(share * maxUptimeMs * 1_024) / 1_024;
  return { name: `a clock that began ${(ms / dayMs).toFixed(1)} days ago`, ms };
}
