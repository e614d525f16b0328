/** Reads `?window=`: the time for which `/activity` sums its counts. Owns: its syntax and range. */

/** One hour: counts are kept no longer. */
const maxWindowMs = 3_600_000;

/**
 * `window=90s`, `15m` or `1h` in a raw query string, as milliseconds; an hour when absent. `null` when the value has another
 * form, appears twice, is 0, or is longer than an hour.
 */
export function windowOf(rawQuery: string): number | null {
  const values = rawQuery
    .split('&')
    .filter((pair) => pair === 'window' || pair.startsWith('window='))
    .map((pair) => pair.slice('window='.length));
  if (values.length === 0) return maxWindowMs;
  const match = /^([1-9]\d{0,3})([smh])$/.exec(values[0] ?? '');
  if (match === null || values.length > 1) return null;
  const unitMs = match[2] === 'h' ? 3_600_000 : match[2] === 'm' ? 60_000 : 1_000;
  const windowMs = Number(match[1]) * unitMs;
  return windowMs <= maxWindowMs ? windowMs : null;
}
