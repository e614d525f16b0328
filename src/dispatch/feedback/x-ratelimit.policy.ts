/**
 * `x-ratelimit-{limit,remaining,reset}-{dimension}`, the form that OpenAI began and many follow, with Azure's
 * `x-ratelimit-renewalperiod-{dimension}` (seconds).
 *
 * Owns: that form. Does not own: who has which dimensions (`providers/`), and arithmetic (`reading.policy.ts`).
 */
import type { ResponseTime } from '../stated-time.policy.ts';
import { count, reset, type Reading } from './reading.policy.ts';

export interface Dimension {
  readonly name: string;
  readonly meter: Reading['meter'];
  /** What the reset means: OpenAI's states when the bucket is full, Cerebras' when the window ends. */
  readonly resetMeans: Reading['resetMeans'];
  /** Window that the name itself states, milliseconds. */
  readonly windowMs: number | null;
}

export const dimension = (
  name: string,
  meter: Reading['meter'],
  resetMeans: Reading['resetMeans'] = 'full',
  windowMs: number | null = null,
): Dimension => ({ name, meter, resetMeans, windowMs });

/** The readings of those of these dimensions that the fields name. */
export function xRateLimitReadings(
  dimensions: readonly Dimension[],
  fields: ReadonlyMap<string, string>,
  at: ResponseTime,
): readonly Reading[] {
  const readings: Reading[] = [];
  for (const { name, meter, resetMeans, windowMs } of dimensions) {
    const limit = count(fields.get(`x-ratelimit-limit-${name}`));
    if (limit === null) continue; // absent, or Azure's −1: nothing is stated
    const renewal = count(fields.get(`x-ratelimit-renewalperiod-${name}`));
    readings.push({
      dimension: name,
      meter,
      limit,
      remaining: count(fields.get(`x-ratelimit-remaining-${name}`)),
      ...reset(fields.get(`x-ratelimit-reset-${name}`), at),
      resetMeans,
      remainingGrain: 1,
      statedWindowMs: renewal !== null && renewal > 0 ? renewal * 1000 : windowMs,
    });
  }
  return readings;
}
