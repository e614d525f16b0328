/**
 * Durations as Go prints them, the form of most language-model limit fields.
 *
 * Owns: formatting only. Invariant: OpenAI cuts to whole milliseconds, Groq keeps the nanoseconds.
 */

/** Binary fractions such as 533.9999999999 mean 534. */
const slackMs = 1e-3;

/** Whole milliseconds, cut as the provider cuts them (not rounded). */
export function wholeMs(ms: number): number {
  return Math.trunc(ms + slackMs);
}

/** `0s`, `534ms`, `58.891s`, `7m12s`, `1h0m0.5s`; `precise` keeps what is below a millisecond (`850µs`). */
export function goDuration(ms: number, precise = false): string {
  const ns = precise ? Math.round(ms * 1e6) : wholeMs(ms) * 1e6;
  if (ns <= 0) return '0s';
  if (ns < 1e3) return `${ns}ns`;
  if (ns < 1e6) return `${ns / 1e3}µs`;
  if (ns < 1e9) return `${ns / 1e6}ms`;
  const hours = Math.floor(ns / 3.6e12);
  const minutes = Math.floor((ns % 3.6e12) / 6e10);
  const seconds = decimal(ns % 6e10);
  if (hours > 0) return `${hours}h${minutes}m${seconds}s`;
  return minutes > 0 ? `${minutes}m${seconds}s` : `${seconds}s`;
}

function decimal(ns: number): string {
  const whole = Math.floor(ns / 1e9);
  const fraction = String(ns % 1e9)
    .padStart(9, '0')
    .replace(/0+$/, '');
  return fraction === '' ? String(whole) : `${whole}.${fraction}`;
}
