/**
 * What a response teaches of an upstream whose dialect is described in configuration (`speaks`): windows, fields, conditions and waits
 * as they are described, else the fields that no provider owns. 429 is a refusal for want of quota in every dialect.
 */
import type { Feedback, MeterName, MeterReport, Throttle } from '../../call.ts';
import type {
  CountField,
  Dialect,
  DialectFields,
  DialectWindow,
  RefusalCondition,
  ResponseCondition,
  TimeField,
  WaitPlace,
} from '../../config/settings.ts';
import { longestWaitMs, namedWaitMs } from '../stated-time.policy.ts';
import { timeLeftMs, type ResponseTime } from '../stated-time.policy.ts';
import { valueAt } from './json.policy.ts';
import {
  addTighter,
  count,
  exhaustedForMs,
  mayHaveLeft,
  reportsOf,
  requestsReading,
  reset,
  unownedReadings,
  windowOf,
  type Reading,
} from './limits.policy.ts';
import type { ResponseReader } from './response.policy.ts';

/** A refusal that states no wait is taken to last for the shortest described window, but no longer than this. Milliseconds. */
const maxGuessMs = 60_000;
const secondMs = 1_000;
const dayMs = 86_400_000;

/** The dialect of an upstream that nothing is known of: the fields that no provider owns, and the statuses of RFC 9110 and RFC 6585. */
export const unknownDialect: Dialect = {
  windows: [],
  operations: [],
  operation: [],
  fields: null,
  throttledBy: [],
  permanentBy: [],
  expiredBy: [],
  separators: [],
  namedIn: null,
  penaltyMs: null,
  waitIn: [],
  hintlessMs: null,
  bodyStatuses: [],
};

export function learnFromDialect(dialect: Dialect, response: ResponseReader): Feedback {
  const readings =
    dialect.fields === null
      ? unownedReadings(response.fields, response.at)
      : dialect.fields.flatMap((one) => readingOf(one, dialect.windows, response) ?? []);
  const meters =
    dialect.windows.length === 0 ? reportsOf(readings) : windowReports(dialect, readings, response.at);
  const refusesCredential = dialect.expiredBy.some((one) => meetsCondition(one, response));
  const throttle = throttleOf(dialect, response, readings, meters);
  const name = dialect.namedIn === null ? '' : (response.fields.get(dialect.namedIn)?.trim() ?? '');
  return {
    meters,
    throttle,
    ...(name === '' || name.length > maxName ? {} : { scope: { name } }),
    ...(refusesCredential ? { refusesCredential } : {}),
  };
}

/** A longer value of the field is no name. Characters. */
const maxName = 128;

/**
 * What one set of fields states; `null`: the response has none of them. A field with a rate stands for a limit of one second's calls, or
 * of as many as a leaky window is described to let pass at once.
 */
function readingOf(
  described: DialectFields,
  windows: readonly DialectWindow[],
  { fields, at }: ResponseReader,
): Reading | null {
  const limit = countIn(described.limit, fields);
  const used = countIn(described.used, fields);
  const remaining = countIn(described.remaining, fields);
  const resetInMs = timeIn(described.reset, fields, at);
  const rate = countIn(described.rate, fields);
  if ([limit, used, remaining, resetInMs, rate].every((value) => value === null)) return null;
  const { window } = described;
  const windowMs = typeof window === 'number' ? window : timeIn(window, fields, at);
  const isRate = rate !== null && rate > 0;
  const [only] = windows.length === 1 ? windows : [];
  const stated = only?.requests ?? null;
  const burst = only?.kind === 'leaky' ? only.requests : null;
  const known = limit ?? (isRate ? (burst ?? Math.max(1, Math.floor(rate))) : stated);
  const as = described.reset?.as;
  return requestsReading({
    limit: known ?? (used !== null && remaining !== null ? used + remaining : null),
    remaining: remaining ?? (used !== null && known !== null ? Math.max(0, known - used) : null),
    resetInMs,
    resetGrainMs: as === 'milliseconds' || as === 'duration' ? 1 : secondMs,
    statedWindowMs: isRate && known !== null && limit === null ? (known / rate) * secondMs : windowMs,
  });
}

function countIn(field: CountField | null, fields: ReadonlyMap<string, string>): number | null {
  return field === null ? null : count(valueOf(field, fields));
}

function timeIn(
  field: TimeField | null,
  fields: ReadonlyMap<string, string>,
  at: ResponseTime,
): number | null {
  return field === null ? null : reset(valueOf(field, fields), at, field.as).resetInMs;
}

/** The value of a field, or the number behind a name in that value: `total=100; remaining=99`. */
function valueOf({ name, member }: CountField, fields: ReadonlyMap<string, string>): string | undefined {
  const value = fields.get(name)?.slice(0, 1_024);
  if (value === undefined || member === null) return value;
  for (const part of value.split(/[;,]/)) {
    const [key = '', found] = part.split('=');
    if (key.trim().toLowerCase() === member) return found?.trim();
  }
  return undefined;
}

/** Reports for the windows that the dialect describes, and for a day; of two for one window that of the lower limit. */
function windowReports({ windows }: Dialect, readings: readonly Reading[], at: ResponseTime): MeterReport[] {
  const reports: MeterReport[] = [];
  for (const reading of readings) {
    const window = windowFor(windows, reading);
    if (window === null) {
      // A day's quota that only the responses state.
      for (const day of reportsOf([reading])) if (day.meter === 'requests_day') addTighter(reports, day);
      continue;
    }
    const limit = reading.limit ?? window.requests;
    const level = reading.remaining === null ? null : Math.max(0, limit - reading.remaining);
    addTighter(reports, {
      meter: window.meter,
      limit,
      windowMs: windowOf(reading) ?? window.windowMs,
      ...(window.kind === 'fixed' ? endOf(reading, window.windowMs, at) : {}),
      level: level === null ? null : { lowest: Math.max(0, level - 1), highest: level },
    });
  }
  return reports;
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
  const possible = windows.filter((window) => mayHaveLeft(reading, window.windowMs));
  return possible.find(({ requests }) => requests === reading.limit) ?? possible.at(-1) ?? null;
}

/** The wait that a refusal states in the places which its dialect describes, the first that does; `null`: none of them. */
function describedWaitMs(places: readonly WaitPlace[], response: ResponseReader): number | null {
  for (const place of places) {
    const as = place.kind === 'field' ? place.field.as : place.as;
    const waitMs = longestWaitMs(textAt(place, response), (value) => timeLeftMs(value, as, response.at));
    if (waitMs !== null) return waitMs;
  }
  return null;
}

function textAt(place: WaitPlace, response: ResponseReader): string | undefined {
  switch (place.kind) {
    case 'field':
      return valueOf(place.field, response.fields);
    case 'member': {
      const value = valueAt(response.json, place.pointer);
      return typeof value === 'string' || typeof value === 'number' ? String(value) : undefined;
    }
    case 'sentence':
      return new RegExp(place.pattern, 'i').exec((response.body ?? '').slice(0, maxText))?.[1];
  }
}

/** How much of a body a described pattern is looked for in, characters. */
const maxText = 2_000;

function throttleOf(
  dialect: Dialect,
  response: ResponseReader,
  readings: readonly Reading[],
  meters: readonly MeterReport[],
): Throttle | null {
  const { status } = response;
  const by = conditionOf(dialect, response);
  if (by?.kind === 'permanent') return permanentBy(by.condition, statedMs(dialect, response));
  if (by === null && status !== 429 && !isLimitedInWords(dialect, response)) {
    const isOverload = status === 503 || status === 529;
    return isOverload ? { kind: 'overload', waitMs: statedMs(dialect, response) ?? response.bodyMs } : null;
  }
  const condition = by?.condition ?? null;
  const toldMs = statedMs(dialect, response) ?? response.bodyMs ?? exhaustedForMs(readings);
  const namedMs = toldMs ?? namedWaitMs(response.fields, response.at) ?? condition?.waitMs ?? null;
  const scope = scopeOf(condition);
  // The windows of a bucket do not count what concerns more or less than the bucket.
  const isOwn = (scope.scope ?? 'bucket') === 'bucket';
  return {
    kind: 'rate',
    waitMs: waitOf(dialect, namedMs),
    meter: isOwn ? meterOf(dialect, meters) : null,
    ...scope,
  };
}

const limited = new RegExp(
  [
    '\\brate.?limit(?:s|ed|ing)? (?:is |has been )?(?:exceeded|reached|hit)|\\b(?:exceeded|reached|hit)\\b[^.]{0,30}\\brate.?limit',
    '\\btoo (?:many requests|frequent)\\b|\\bover (?:qps|rate)\\b', // Bybit; Mashery
  ].join('|'),
  'i',
);

/**
 * A 403 that says in words that calls come too fast, of an upstream whose refusals nobody has described. A 418 (Binance) or 420 (Podio)
 * says so as well with a time.
 */
function isLimitedInWords({ throttledBy }: Dialect, response: ResponseReader): boolean {
  const { status, body } = response;
  if (throttledBy.length > 0 || ![403, 418, 420].includes(status)) return false;
  return limited.test(body ?? '') || (status !== 403 && (response.statedMs ?? response.bodyMs) !== null);
}

/**
 * What the described conditions and waits make of a refusal of an upstream whose kind has a dialect of its own; `null`: they say nothing.
 * @param known what its kind makes of it
 */
export function describedThrottle(
  dialect: Dialect,
  response: ResponseReader,
  known: Throttle | null,
): Throttle | null {
  const by = conditionOf(dialect, response);
  if (by === null) {
    if (known === null || known.kind === 'permanent') return null;
    const waitMs = describedWaitMs(dialect.waitIn, response);
    return waitMs === null ? null : { ...known, waitMs };
  }
  const waitMs = describedWaitMs(dialect.waitIn, response) ?? known?.waitMs ?? null;
  const { condition } = by;
  if (by.kind === 'permanent') return permanentBy(condition, waitMs ?? response.statedMs);
  const namedMs = waitMs ?? response.statedMs ?? response.bodyMs ?? condition.waitMs;
  const meter = known?.kind === 'rate' && condition.scope === undefined ? known.meter : null;
  return { kind: 'rate', waitMs: namedMs, meter, ...scopeOf(condition) };
}

/** The wait that a refusal states; most responses are none, and nobody asks then. */
const statedMs = (dialect: Dialect, response: ResponseReader): number | null =>
  describedWaitMs(dialect.waitIn, response) ?? response.statedMs;

const permanentBy = (condition: RefusalCondition, waitMs: number | null): Throttle => ({
  kind: 'permanent',
  reason: 'quota',
  waitMs: waitMs ?? condition.waitMs,
  ...scopeOf(condition),
});

/**
 * The condition that the response meets, the most exact one of both kinds, the first of equals: the one with more parts, or with as many and
 * a text around that of the other. `null`: it meets none.
 */
function conditionOf(
  { throttledBy, permanentBy: lasting }: Dialect,
  response: ResponseReader,
): { readonly kind: 'rate' | 'permanent'; readonly condition: RefusalCondition } | null {
  const met = [
    ...throttledBy.map((condition) => ({ kind: 'rate', condition }) as const),
    ...lasting.map((condition) => ({ kind: 'permanent', condition }) as const),
  ].filter(({ condition }) => meetsCondition(condition, response));
  const [first = null, ...others] = met;
  return others.reduce(
    (best, one) => (best !== null && isMoreExact(one.condition, best.condition) ? one : best),
    first,
  );
}

const scopeOf = (by: RefusalCondition | null): Pick<RefusalCondition, 'scope'> =>
  by?.scope === undefined ? {} : { scope: by.scope };

function isMoreExact(one: RefusalCondition, other: RefusalCondition): boolean {
  const [parts, others] = [partsIn(one), partsIn(other)];
  if (parts !== others) return parts > others;
  const isAround = (text: string): boolean => one.body.some((own) => own !== text && own.includes(text));
  return other.body.length > 0 && other.body.every(isAround);
}

const partsIn = ({ field, equals, body }: ResponseCondition): number =>
  (field === null ? 0 : 1) + (equals === null ? 0 : 1) + body.length;

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
  if (condition.body.length === 0) return true;
  const text = (body ?? '').toLowerCase();
  return condition.body.every((part) => text.includes(part));
}
