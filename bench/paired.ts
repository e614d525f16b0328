/**
 * What paired measurements say of a ratio. Owns that arithmetic; it assumes nothing of how the machine disturbs a round but
 * that it disturbs one as it does the other.
 */

/** Median of some numbers; `NaN` of none. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return ((sorted[(sorted.length - 1) >> 1] ?? NaN) + (sorted[sorted.length >> 1] ?? NaN)) / 2;
}

/** Median of the rounds' own ratios of what was measured in each round to the yardstick of that round. */
export function pairedRatio(values: readonly number[], to: readonly number[]): number {
  return median(values.map((value, round) => value / (to[round] ?? NaN)));
}

export interface MedianInterval {
  readonly median: number;
  /** The true median is between these in at least 95 of 100 such measurements; `null` = fewer than six numbers. */
  readonly between: readonly [number, number] | null;
}

/** The interval of the sign test: as many of the smallest and largest numbers are left out as chance may put on one side. */
export function medianInterval(values: readonly number[]): MedianInterval {
  const sorted = values.toSorted((a, b) => a - b);
  const n = sorted.length;
  // Chance that at most `at` of n numbers are below the median, while it is at most 2.5 %.
  let chance = 0.5 ** n;
  let term = chance;
  let leftOut = -1;
  for (let at = 0; chance <= 0.025; at += 1) {
    leftOut = at;
    term *= (n - at) / (at + 1);
    chance += term;
  }
  const [low, high] = [sorted[leftOut], sorted[n - 1 - leftOut]];
  return {
    median: median(values),
    between: leftOut < 0 || low === undefined || high === undefined ? null : [low, high],
  };
}
