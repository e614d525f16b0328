/**
 * One limit as a response's fields spell it, and what it says about a meter.
 *
 * Owns: from `limit`, `remaining`, `reset` to a window and a level. Does not own: the names of the fields (the
 * dialect policies) and moving any meter (`limiter/`). Invariant: only what the numbers prove; a window that does not
 * fit exactly one known length is `null`, a level is an interval that contains the truth.
 */
import type { MeterName, MeterReport } from '../../call.ts';
import type { TimeUnit } from '../../config/settings.ts';
import { singleValues, timeLeftMs, type ResponseTime } from '../stated-time.policy.ts';

/** One limit of a response; `null` members were absent or unusable. */
export interface Reading {
  /** The provider's word for the dimension: `requests`, `tokens`, `input-images`, `tokens-day` … */
  readonly dimension: string;
  /** Meter it belongs to by name; the window may still make it the `_day` one. */
  readonly meter: 'requests' | 'tokens' | 'images' | 'input_tokens' | 'output_tokens' | null;
  readonly limit: number | null;
  readonly remaining: number | null;
  /** Milliseconds until all units are free again (`all_free`) or until the window ends (`window`). */
  readonly resetInMs: number | null;
  readonly resetMeans: 'all_free' | 'window';
  /** Rounding of the reset, milliseconds. */
  readonly resetGrainMs: number;
  /** Window the provider states; wins over any deduction. */
  readonly statedWindowMs: number | null;
}

/** A reading of requests whose reset is the end of their window, with what is stated of it. */
export const requestsReading = (stated: Partial<Reading>): Reading => ({
  dimension: 'requests',
  meter: 'requests',
  limit: null,
  remaining: null,
  resetInMs: null,
  resetMeans: 'window',
  resetGrainMs: 0,
  statedWindowMs: null,
  ...stated,
});

/** A field that is longer states nothing. Characters. */
const maxField = 1_024;

/** A field that counts something: thousands commas stripped, repeats must agree, `-1` and garbage are `null`. */
export function count(value: string | undefined): number | null {
  if (value === undefined || value.length > 64) return null;
  const parts = value.split(/,\s+/).map((part) => part.trim());
  const first = parts[0] ?? '';
  if (parts.some((part) => part !== first)) return null;
  const digits = /^\d{1,3}(,\d{3})+$/.test(first) ? first.replaceAll(',', '') : first;
  return /^\d+(\.\d+)?$/.test(digits) ? Number(digits) : null;
}

/**
 * A reset field with its rounding: a value with a unit is exact to the millisecond, all others to the second. Of several values the
 * latest counts. An instant in the past is 0: that reset has happened.
 */
export function reset(
  value: string | undefined,
  at: ResponseTime,
  as: TimeUnit = 'inferred',
): { readonly resetInMs: number | null; readonly resetGrainMs: number } {
  if (value === undefined) return { resetInMs: null, resetGrainMs: 0 };
  const times =
    value.length > maxField ? [] : singleValues(value).map((single) => timeLeftMs(single, as, at));
  const found = times.filter((timeMs) => timeMs !== null);
  return {
    resetInMs: found.length === 0 ? null : Math.max(0, ...found),
    resetGrainMs: /\d[a-zµμ]+$/.test(value.trim()) ? 1 : 1000,
  };
}

const minuteMs = 60_000;
const hourMs = 3_600_000;
const dayMs = 86_400_000;
const knownWindowsMs: readonly number[] = [1000, 10_000, minuteMs, hourMs, dayMs];
/** By this part of a window, and by the rounding of the reset, more of it may be stated as left than it has: clocks differ. */
const clockShare = 1 / 30;

/**
 * Window in which the limit drains, or `null` = not stated.
 * A bucket whose units are all free after `reset` drains `used` in that time, so window = reset × limit / used. `used` lies within
 * one unit below `limit − remaining` and `reset` within its rounding above the value, which gives an interval; the one
 * known window inside is the response. Recorded: 200/199 and `7m12s` is a day, 30000/554 and `58.891s` a minute.
 * A reset within a minute may as well be the end of a minute's window, so of longer windows only a day that fits exactly is believed.
 */
export function windowOf(reading: Reading): number | null {
  if (reading.statedWindowMs !== null) return reading.statedWindowMs;
  const { limit, remaining, resetInMs } = reading;
  if (reading.resetMeans !== 'all_free' || limit === null || remaining === null || resetInMs === null)
    return null;
  const used = limit - remaining;
  if (used < 1 || resetInMs < 1) return null;
  const grain = grainOf(reading, remaining);
  const [above, below] = grain > 1 ? [grain / 2, grain / 2] : [0, 1];
  const shortest = (resetInMs * limit) / (used + above);
  // With less used than the rounding there is no upper bound; a success has just used one unit, so twice is ample then.
  const atMostMs = grain > 1 ? Infinity : shortest * 2;
  const longest = used > below ? ((resetInMs + reading.resetGrainMs) * limit) / (used - below) : atMostMs;
  const fitting = knownWindowsMs.filter((windowMs) => windowMs > shortest * 0.999_99 && windowMs <= longest);
  const [only = null] = fitting.length === 1 ? fitting : [];
  if (only === null || only <= minuteMs || resetInMs > minuteMs) return only;
  const isExactDay = only === dayMs && only <= ((resetInMs + reading.resetGrainMs) * limit) / used;
  return isExactDay ? only : null;
}

/** A window of this length may be the one of which the response states what is left: none is shorter than that. */
export const mayHaveLeft = ({ resetMeans, resetInMs, resetGrainMs }: Reading, windowMs: number): boolean =>
  resetMeans !== 'window' || resetInMs === null || resetInMs <= windowMs * (1 + clockShare) + resetGrainMs;

/**
 * The window of a response that states none and shows that it is a long one: more than an hour left means a day. Shorter windows
 * are learned from the times that successive responses state (`meter.policy.ts`).
 */
function longWindowOf(reading: Reading): number | null {
  const { resetMeans, resetInMs } = reading;
  if (resetMeans !== 'window' || resetInMs === null || resetInMs <= hourMs) return null;
  return [hourMs, dayMs].find((windowMs) => mayHaveLeft(reading, windowMs)) ?? null;
}

/**
 * Level in used units, or `null`. From the reset where it fits (the fraction is kept), within what `remaining`
 * allows; where both contradict each other (a reset of 0 beside remaining 0, seen on Azure) `remaining` is believed.
 */
function levelOf(reading: Reading, windowMs: number | null): MeterReport['level'] {
  const { limit, remaining, resetInMs } = reading;
  if (limit === null) return null;
  const counted = remaining === null ? null : countedLevel(limit, remaining, grainOf(reading, remaining));
  if (reading.resetMeans !== 'all_free' || resetInMs === null || windowMs === null) return counted;
  const perMs = limit / windowMs;
  const lowest = Math.max(0, resetInMs - reading.resetGrainMs) * perMs;
  const highest = (resetInMs + reading.resetGrainMs) * perMs;
  if (counted === null) return { lowest, highest };
  if (lowest > counted.highest || highest < counted.lowest) return counted;
  return { lowest: Math.max(lowest, counted.lowest), highest: Math.min(highest, counted.highest) };
}

/** What providers may round tokens to: those that are left are seldom a multiple of one by chance. Largest first. */
const roundings = [10_000, 5_000, 2_000, 1_000, 500, 200, 100, 50];
/** A statement is taken to be rounded to this share of the limit at most. */
const maxRounding = 0.05;

/** Rounding of what is left. 1: it is a floor, so the truth is up to one higher; more: the truth is up to half of it away. */
function grainOf({ meter, limit }: Reading, remaining: number): number {
  if (meter?.endsWith('tokens') !== true || remaining <= 0) return 1;
  const largest = (limit ?? 0) * maxRounding;
  return roundings.find((rounding) => rounding <= largest && remaining % rounding === 0) ?? 1;
}

function countedLevel(limit: number, remaining: number, grain: number): { lowest: number; highest: number } {
  const used = Math.max(0, limit - remaining);
  if (grain <= 1) return { lowest: Math.max(0, used - grain), highest: used };
  return { lowest: Math.max(0, used - grain / 2), highest: Math.min(limit, used + grain / 2) };
}

/** Meter of a dimension: a day's window makes it the daily one. */
function meterOf(reading: Reading, windowMs: number | null): MeterName | null {
  if (reading.meter !== 'requests' && reading.meter !== 'tokens') return reading.meter;
  return windowMs !== null && windowMs >= dayMs ? `${reading.meter}_day` : reading.meter;
}

const noReports: readonly MeterReport[] = [];

/** Reports of all readings that name a usable limit; of two for one meter the tighter limit. */
export function reportsOf(readings: readonly Reading[]): readonly MeterReport[] {
  if (readings.length === 0) return noReports;
  const reports: MeterReport[] = [];
  const windows = requestWindows(readings);
  for (const reading of readings) {
    const windowMs = windowOf(reading) ?? longWindowOf(reading);
    const meter = meterOf(reading, windowMs);
    if (meter === null || reading.limit === null || reading.limit <= 0) continue;
    const { limit } = reading;
    const level = levelOf(reading, windowMs);
    const own = meter === 'requests' ? meterAmong(windows, windowMs) : meter;
    addTighter(reports, { meter: own, limit, windowMs, ...resetOf(reading, windowMs), level });
  }
  return reports;
}

/** A window of this length or more counts beside one of about a minute as the hourly one. */
const hourlyMs = 1_800_000;

/** The windows shorter than a day that one response states for requests, shortest first. */
function requestWindows(readings: readonly Reading[]): readonly number[] {
  const windows = new Set<number>();
  for (const reading of readings) {
    const windowMs = reading.meter === 'requests' ? windowOf(reading) : null;
    if (windowMs !== null && windowMs < dayMs && (reading.limit ?? 0) > 0) windows.add(windowMs);
  }
  return [...windows].toSorted((a, b) => a - b);
}

/** The meter of a window of requests, given all such windows of the same response. A window that is alone is `requests`. */
function meterAmong(windows: readonly number[], windowMs: number | null): MeterName {
  if (windowMs === null || windows.length < 2) return 'requests';
  const [shortest] = windows;
  const longest = windows.at(-1);
  if (windowMs === longest && windowMs >= hourlyMs) return 'requests_hour';
  const hasMiddle = windows.length > 2 || (longest ?? 0) < hourlyMs;
  return windowMs === shortest && hasMiddle ? 'requests_burst' : 'requests';
}

/** What a report without a window shows of its length. */
const resetOf = (
  { resetMeans, resetInMs }: Reading,
  windowMs: number | null,
): Pick<MeterReport, 'resetMs'> =>
  windowMs === null && resetMeans === 'window' && resetInMs !== null ? { resetMs: resetInMs } : {};

/** Adds a report; where its meter has one already, the report with the lower limit stays. */
export function addTighter(reports: MeterReport[], report: MeterReport): void {
  const at = reports.findIndex((known) => known.meter === report.meter);
  const known = reports[at];
  if (known === undefined) reports.push(report);
  else if (report.limit < known.limit) reports[at] = report;
}

/** For how long a refusal lasts: milliseconds until the window of an exhausted limit ends, the longest of them; `null` when none says so. */
export function exhaustedForMs(readings: readonly Reading[]): number | null {
  let waitMs: number | null = null;
  for (const { remaining, resetInMs, resetMeans } of readings) {
    // Without a word of what is left, a refusal shows that nothing is, and its window ends at the reset. A meter may have room before
    // it is empty, but where a refusal states no other time, this one is the upstream's own.
    const isSpent = remaining === null ? resetMeans === 'window' : remaining < 1;
    if (!isSpent || resetInMs === null) continue;
    if (resetInMs > 0) waitMs = Math.max(waitMs ?? 0, Math.ceil(resetInMs));
  }
  return waitMs;
}
