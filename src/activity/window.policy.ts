/** Reads `?window=`: the time for which `/activity` sums its counts. Owns: its range. */
import { secondsInQuery } from '../duration.policy.ts';

/** One hour: counts are kept no longer. */
const maxWindowMs = 3_600_000;

/**
 * `window=90s`, `15m` or `1h` in a raw query string, as milliseconds; an hour when absent. `null` when the value has another
 * form, appears twice, is below a second, or is longer than an hour.
 */
export function windowOf(rawQuery: string): number | null {
  if (!/(?:^|&)window(?:=|&|$)/.test(rawQuery)) return maxWindowMs;
  const windowMs = (secondsInQuery(`?${rawQuery}`, 'window') ?? 0) * 1_000;
  return windowMs >= 1_000 && windowMs <= maxWindowMs ? windowMs : null;
}
