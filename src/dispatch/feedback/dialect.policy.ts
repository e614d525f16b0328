/**
 * What a response teaches of an upstream whose dialect is described in configuration (`speaks`).
 *
 * Owns: windows, fields and conditions as they are described. Does not own: what is read where the description names no
 * fields (`ietf.policy.ts`), and the bounds of belief. Invariant: 429 is a refusal for want of quota in every dialect.
 */
import type { Feedback, MeterName, MeterReport, Throttle } from '../../call.ts';
import type { ResponseCondition, Dialect, DialectWindow } from '../../config/dialect.ts';
import type { ResponseTime } from '../stated-time.policy.ts';
import { describedWaitMs, readFields, type FieldReading } from './dialect-fields.policy.ts';
import { unownedReadings } from './ietf.policy.ts';
import {
  exhaustedForMs,
  longWindowOf,
  mayHaveLeft,
  reportsOf,
  requestsReading,
  windowOf,
  type Reading,
} from './reading.policy.ts';
import type { ResponseReader } from './response.policy.ts';

/** A refusal that states no wait is taken to last for the shortest described window, but no longer than this. Milliseconds. */
const maxGuessMs = 60_000;
const secondMs = 1_000;
const dayMs = 86_400_000;

/** The dialect of an upstream that nothing is known of: the fields that no provider owns, and the statuses of RFC 9110 and RFC 6585. */
export const unknownDialect: Dialect = {
  windows: [],
  fields: null,
  throttledBy: [],
  permanentBy: [],
  expiredBy: [],
  separators: [],
  penaltyMs: null,
  waitIn: [],
  hintlessMs: null,
  bodyStatuses: [],
};

export function learnFromDialect(dialect: Dialect, response: ResponseReader): Feedback {
  const readings = readingsOf(dialect, response);
  const meters =
    dialect.windows.length === 0 ? reportsOf(readings) : windowReports(dialect, readings, response.at);
  const refusesCredential = dialect.expiredBy.some((one) => meetsCondition(one, response));
  const throttle = throttleOf(dialect, response, { readings, meters });
  return { meters, throttle, ...(refusesCredential ? { refusesCredential } : {}) };
}

function readingsOf(dialect: Dialect, { fields, at }: ResponseReader): readonly Reading[] {
  if (dialect.fields === null) return unownedReadings(fields, at);
  return dialect.fields.flatMap((described) => {
    const reported = readFields(described, fields, at);
    return reported === null ? [] : [readingOf(reported, dialect)];
  });
}

/** A field with a rate stands for a limit of one second's calls: how many more the upstream lets pass at once is not documented. */
function readingOf(reported: FieldReading, { windows }: Dialect): Reading {
  const { limit, used, remaining, resetInMs, resetGrainMs, windowMs, rate } = reported;
  const isRate = rate !== null && rate > 0;
  const stated = windows.length === 1 ? (windows[0]?.requests ?? null) : null;
  const known = limit ?? (isRate ? Math.max(1, Math.floor(rate)) : stated);
  return requestsReading({
    limit: known ?? (used !== null && remaining !== null ? used + remaining : null),
    remaining: remaining ?? (used !== null && known !== null ? Math.max(0, known - used) : null),
    resetInMs,
    resetGrainMs,
    statedWindowMs: isRate && known !== null && limit === null ? (known / rate) * 1000 : windowMs,
  });
}

/** Reports for the windows that the dialect describes. A report that fits none of them is left out. */
function windowReports({ windows }: Dialect, readings: readonly Reading[], at: ResponseTime): MeterReport[] {
  return readings.flatMap((reading): readonly MeterReport[] => {
    const window = windowFor(windows, reading);
    if (window === null) return dayReports(reading);
    const limit = reading.limit ?? window.requests;
    const { remaining } = reading;
    const level = remaining === null ? null : Math.max(0, limit - remaining);
    return [
      {
        meter: window.meter,
        limit,
        windowMs: windowOf(reading) ?? window.windowMs,
        ...(window.kind === 'fixed' ? endOf(reading, window.windowMs, at) : {}),
        level: level === null ? null : { lowest: Math.max(0, level - 1), highest: level },
      },
    ];
  });
}

/**
 * Where a window is at least this many times as long as the rounding of its end, its latest possible end is used: at most a
 * thirtieth of the window is then lost.
 */
const grainsPerWindow = 30;

/**
 * When a window of the upstream ends, by the upstream's clock. Its `Date` is in whole seconds, and so are most resets, so several ends
 * fit a response: the latest of them is taken where that costs little, and for a short window the earliest, which is certain.
 */
function endOf(
  { resetInMs, resetGrainMs }: Reading,
  windowMs: number,
  { date }: ResponseTime,
): Pick<MeterReport, 'resetMs'> {
  // Without `Date` a reset may have been measured by our own clock.
  if (resetInMs === null || resetInMs <= 0 || date === null || date === undefined) return {};
  const grainMs = resetGrainMs < secondMs ? resetGrainMs : 2 * secondMs;
  const resetMs = grainMs * grainsPerWindow <= windowMs ? resetInMs : resetInMs - grainMs;
  return resetMs > 0 ? { resetMs } : {};
}

/**
 * The described window of a report: the one of its length where the response states that, else the one of its limit, else the longest.
 * Where more is left than a window has, the report is of another one.
 */
function windowFor(windows: readonly DialectWindow[], reading: Reading): DialectWindow | null {
  const windowMs = windowOf(reading);
  const [only] = windows;
  if (windowMs !== null) {
    const same = windows.find((window) => window.windowMs === windowMs);
    const isAlone = windows.length === 1 && only !== undefined && only.windowMs < dayMs === windowMs < dayMs;
    return same ?? (isAlone ? only : null);
  }
  const isLong = longWindowOf(reading) !== null;
  const possible = windows.filter((window) => !isLong || mayHaveLeft(reading, window.windowMs));
  return possible.find(({ requests }) => requests === reading.limit) ?? possible.at(-1) ?? null;
}

/** A day's quota that only the responses state. */
const dayReports = (reading: Reading): readonly MeterReport[] =>
  reportsOf([reading]).filter(({ meter }) => meter === 'requests_day');

interface Reported {
  readonly readings: readonly Reading[];
  readonly meters: readonly MeterReport[];
}

function throttleOf(dialect: Dialect, response: ResponseReader, reported: Reported): Throttle | null {
  const { status } = response;
  const statedMs = describedWaitMs(dialect.waitIn, response) ?? response.statedMs;
  if (dialect.permanentBy.some((one) => meetsCondition(one, response)))
    return { kind: 'permanent', reason: 'quota', waitMs: statedMs };
  const by = dialect.throttledBy.find((one) => meetsCondition(one, response));
  if (by === undefined && status !== 429) {
    const isOverload = status === 503 || status === 529;
    return isOverload ? { kind: 'overload', waitMs: statedMs ?? response.bodyMs } : null;
  }
  const namedMs = statedMs ?? response.bodyMs ?? exhaustedForMs(reported.readings) ?? by?.waitMs ?? null;
  return { kind: 'rate', waitMs: waitOf(dialect, namedMs), meter: meterOf(dialect, reported.meters) };
}

function waitOf({ penaltyMs, windows, hintlessMs }: Dialect, namedMs: number | null): number | null {
  if (penaltyMs !== null) return Math.max(namedMs ?? 0, penaltyMs);
  const [shortest] = hintlessMs === null ? windows : [];
  return namedMs ?? (shortest === undefined ? null : Math.min(shortest.windowMs, maxGuessMs));
}

/** The meter whose window refused the call: the only one that is used up. `null`: not known, none or several are used up. */
function meterOf({ windows }: Dialect, meters: readonly MeterReport[]): MeterName | null {
  const full = meters.filter(({ level, limit }) => level !== null && level.highest >= limit);
  const [only] = full;
  if (full.length === 1 && only !== undefined) return only.meter;
  return windows.length > 0 ? null : 'requests';
}

/** Does the response meet all parts of the condition? */
function meetsCondition(condition: ResponseCondition, { status, fields, body }: ResponseReader): boolean {
  if (!condition.statuses.includes(status)) return false;
  if (condition.field !== null) {
    const value = fields.get(condition.field);
    if (value === undefined || (condition.equals !== null && value.trim() !== condition.equals)) return false;
  }
  return condition.body === null || (body ?? '').toLowerCase().includes(condition.body);
}
