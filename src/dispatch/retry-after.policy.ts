/**
 * What a response says about when to try again.
 *
 * Owns: `Retry-After` and `retry-after-ms` as real servers send them. Does not own: waits written in bodies, and the
 * back-off when nothing usable is said. Invariant: never earlier than stated (rounded up; of several values the
 * longest), and never 0: clients that took garbage for 0 hammer their upstream at once.
 */
import { answeredAtMs, type ResponseTime } from './duration.policy.ts';
import { httpDateMs, rfc3339Ms } from './instant.policy.ts';

/** Longest wait believed, the longest window any known limiter has: 24 h in milliseconds. */
export const maxRetryAfterMs = 86_400_000;

const decimal = /^\d+(?:\.\d*)?$|^\.\d+$/;

/**
 * Milliseconds to wait from the arrival of the response, integer in 1…24 h; `null` = nothing usable was said.
 * First usable of `retry-after-ms` (> 0) and `retry-after` (seconds, fractions allowed against RFC 9110 because the
 * commerce API sends `2.0`; ≥ 1e9 is an epoch sent by mistake; HTTP-date or RFC 3339 against the response's own `Date`).
 * `fields` has lower-case names and repeats joined by a comma; `nowMs` is the wall clock.
 */
export function retryAfterMs(fields: ReadonlyMap<string, string>, nowMs: number): number | null {
  const at: ResponseTime = { date: fields.get('date'), now: nowMs };
  const exact = longest(fields.get('retry-after-ms'), milliseconds);
  return exact ?? longest(fields.get('retry-after'), (value) => seconds(value, at));
}

function longest(value: string | undefined, read: (value: string) => number | null): number | null {
  if (value === undefined || value.length > 256) return null;
  let found: number | null = null;
  for (const single of singleValues(value)) {
    const waitMs = usable(read(single));
    if (waitMs !== null && (found === null || waitMs > found)) found = waitMs;
  }
  return found;
}

/** Splits joined values; the comma inside an HTTP-date follows the name of a day. */
function singleValues(value: string): readonly string[] {
  return value
    .split(/(?<!\b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}),/i)
    .map((single) => single.trim())
    .filter((single) => single.length > 0);
}

function usable(waitMs: number | null): number | null {
  if (waitMs === null || !Number.isFinite(waitMs) || waitMs <= 0) return null;
  return Math.min(Math.ceil(waitMs), maxRetryAfterMs);
}

function milliseconds(value: string): number | null {
  return decimal.test(value) ? Number(value) : null;
}

function seconds(value: string, at: ResponseTime): number | null {
  if (decimal.test(value)) {
    const number = Number(value);
    if (number >= 1e12) return number - answeredAtMs(at);
    if (number >= 1e9) return number * 1000 - answeredAtMs(at);
    // Thousandths first, so that 2.3 s does not become 2301 ms by binary dust.
    return Math.round(number * 1e6) / 1e3;
  }
  const instant = httpDateMs(value) ?? rfc3339Ms(value);
  return instant === null ? null : instant - answeredAtMs(at);
}
