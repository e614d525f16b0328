/**
 * How long until a limit is full again, in every spelling that providers use.
 *
 * Owns: the grammar of reset values. Does not own: what the reset means for a bucket (`feedback/reading.policy.ts`)
 * and `Retry-After` (`retry-after.policy.ts`). Invariant: never throws, never negative; what cannot be read is `null`
 * ("no information"), never 0, because 0 would open a bucket.
 */
import { httpDateMs, rfc3339Ms } from './instant.policy.ts';

const unitMs: Readonly<Record<string, number>> = {
  d: 86_400_000,
  h: 3_600_000,
  m: 60_000,
  s: 1000,
  ms: 1,
  us: 1e-3,
  µs: 1e-3, // U+00B5, what Go writes
  μs: 1e-3, // U+03BC, what Go also reads
  ns: 1e-6,
};

// `ms` comes before `m` and `s`, or "120ms" would be two hours and a left-over.
const term = /(\d+(?:\.\d*)?|\.\d+)(ms|us|µs|μs|ns|d|h|m|s)/y;

/**
 * Milliseconds of a Go duration (`Duration.String()`: `7m12s`, `58.891s`, `850µs`), or `null`. Bare numbers, signs,
 * blanks and anything left over are refused. Not rounded: Groq and Gemini send nine decimals.
 */
export function goDurationMs(text: string): number | null {
  if (text.length === 0 || text.length > 64) return null;
  let total = 0;
  term.lastIndex = 0;
  for (let at = 0; at < text.length; at = term.lastIndex) {
    const part = term.exec(text);
    if (part === null) return null;
    total += scaled(part[1] ?? '', unitMs[part[2] ?? ''] ?? NaN);
  }
  return Number.isFinite(total) ? total : null;
}

/** Multiplies without the rounding errors of binary fractions: 2.114999999 s is 2114.999999 ms. */
function scaled(digits: string, factor: number): number {
  const product = Number(digits) * factor;
  const nanoseconds = product * 1e6;
  return nanoseconds < Number.MAX_SAFE_INTEGER ? Math.round(nanoseconds) / 1e6 : product;
}

/** The two clocks an absolute reset can be measured against. */
export interface ResponseTime {
  /** The response's own `Date` field; preferred, so that skew between our clock and theirs does not matter. */
  readonly date: string | null | undefined;
  /** Our wall clock when the head arrived, milliseconds since the epoch. */
  readonly now: number;
}

/** Instant at which a response was made: its own `Date`, else our clock. */
export function answeredAtMs(at: ResponseTime): number {
  const stated = at.date === null || at.date === undefined ? null : httpDateMs(at.date.trim());
  return stated ?? at.now;
}

const decimal = /^\d+(?:\.\d*)?$|^\.\d+$/;
const firstEpochMs = 1e12;
const firstEpochSeconds = 1e9;

/**
 * Milliseconds from the response to the reset, or `null` when the value says nothing (`-1`, malformed, not finite).
 * Unit suffix: Go duration. `2026-09-27T…`: RFC 3339. HTTP-date. Bare number ≥ 1e12: epoch milliseconds, ≥ 1e9: epoch
 * seconds, else delta seconds. An instant in the past is 0: that reset has happened.
 */
export function resetMs(value: string, at: ResponseTime): number | null {
  const text = value.trim();
  if (text.length === 0 || text.length > 64) return null;
  const instant = rfc3339Ms(text) ?? httpDateMs(text);
  if (instant !== null) return Math.max(0, instant - answeredAtMs(at));
  const bare = text.replaceAll(',', '');
  if (!decimal.test(bare) || (bare !== text && !/^\d{1,3}(?:,\d{3})+(?:\.\d*)?$/.test(text))) {
    return goDurationMs(text);
  }
  return fromNumber(Number(bare), at);
}

function fromNumber(number: number, at: ResponseTime): number | null {
  if (!Number.isFinite(number)) return null;
  if (number >= firstEpochMs) return Math.max(0, number - answeredAtMs(at));
  if (number >= firstEpochSeconds) return Math.max(0, number * 1000 - answeredAtMs(at));
  return number * 1000;
}
