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
import { longestWaitMs, namedWaitMs, timeLeftMs } from '../stated-time.policy.ts';
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
  type Fields,
  type Reading,
} from './limits.policy.ts';
import type { ResponseReader } from './response.policy.ts';
import { secondMs, dayMs } from '../../time-units.ts';

/** A refusal that states no wait is taken to last for the shortest described window, but no longer than this. Milliseconds. */
const maxGuessMs = 60_000;
/** How much of a body a described pattern is looked for in, and the longest name of a quota. Characters. */
const maxText = 2_000;
const maxName = 128;

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
  const { windows, fields: described, namedIn } = dialect;
  const readings =
    described === null
      ? unownedReadings(response.fields, response.at)
      : described.flatMap((one) => readingOf(one, windows, response) ?? []);
  const meters = windows.length === 0 ? reportsOf(readings) : windowReports(windows, readings, response);
  const name = namedIn === null ? '' : (response.fields.get(namedIn)?.trim() ?? '');
  return {
    meters,
    throttle: throttleOf(dialect, response, readings, meters),
    ...(name === '' || name.length > maxName ? {} : { scope: { name } }),
    ...(dialect.expiredBy.some((one) => meets(one, response)) ? { refusesCredential: true } : {}),
  };
}

// Fields and windows

/**
 * What one set of fields states; `null`: the response has none of them. A field with a rate stands for a limit of one second's calls, or
 * of as many as a leaky window is described to let pass at once.
 */
function readingOf(
  described: DialectFields,
  windows: readonly DialectWindow[],
  response: ResponseReader,
): Reading | null {
  const countIn = (field: CountField | null): number | null => count(valueOf(field, response.fields));
  const [limit, used] = [countIn(described.limit), countIn(described.used)];
  const [remaining, rate] = [countIn(described.remaining), countIn(described.rate)];
  const timeIn = (field: TimeField | null): number | null =>
    reset(valueOf(field, response.fields), response.at, field?.as).resetInMs;
  const resetInMs = timeIn(described.reset);
  if ([limit, used, remaining, resetInMs, rate].every((value) => value === null)) return null;
  const { window } = described;
  const isRate = rate !== null && rate > 0;
  const [only] = windows.length === 1 ? windows : [];
  const burst = only?.kind === 'leaky' ? only.requests : null;
  const known = limit ?? (isRate ? (burst ?? Math.max(1, Math.floor(rate))) : (only?.requests ?? null));
  const as = described.reset?.as;
  return requestsReading({
    limit: known ?? (used !== null && remaining !== null ? used + remaining : null),
    remaining: remaining ?? (used !== null && known !== null ? Math.max(0, known - used) : null),
    resetInMs,
    resetGrainMs: as === 'milliseconds' || as === 'duration' ? 1 : secondMs,
    statedWindowMs:
      isRate && known !== null && limit === null
        ? (known / rate) * secondMs
        : typeof window === 'number'
          ? window
          : timeIn(window),
  });
}

/** The value of a field, or the number behind a name in that value: `total=100; remaining=99`. */
function valueOf(field: CountField | null, fields: Fields): string | undefined {
  const value = field === null ? undefined : fields.get(field.name)?.slice(0, 1_024);
  if (value === undefined || field === null || field.member === null) return value;
  for (const part of value.split(/[;,]/)) {
    const [key = '', found] = part.split('=');
    if (key.trim().toLowerCase() === field.member) return found?.trim();
  }
  return undefined;
}

/** Reports for the windows that the dialect describes, and for a day; of two for one window that of the lower limit. */
function windowReports(
  windows: readonly DialectWindow[],
  readings: readonly Reading[],
  { at }: ResponseReader,
): MeterReport[] {
  const reports: MeterReport[] = [];
  for (const reading of readings) {
    const window = windowFor(windows, reading);
    if (window === null) {
      // A day's quota that only the responses state.
      for (const day of reportsOf([reading])) if (day.meter === 'requests_day') addTighter(reports, day);
      continue;
    }
    const limit = reading.limit ?? window.requests;
    const used = reading.remaining === null ? null : Math.max(0, limit - reading.remaining);
    // Without `Date` a reset may have been measured by our own clock.
    const endMs =
      window.kind === 'fixed' && typeof at.date === 'string' ? endOf(reading, window.windowMs) : 0;
    addTighter(reports, {
      meter: window.meter,
      limit,
      windowMs: windowOf(reading) ?? window.windowMs,
      ...(endMs > 0 ? { resetMs: endMs } : {}),
      level: used === null ? null : { lowest: Math.max(0, used - 1), highest: used },
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
 * In how many milliseconds a window of the upstream ends, by the upstream's clock; 0 = it is not known. Its `Date` is in whole seconds, and
 * so are most resets, so several ends fit a response: the latest of them is taken where that costs little, and for a short window the
 * earliest, which is certain.
 */
function endOf({ resetInMs, resetGrainMs }: Reading, windowMs: number): number {
  if (resetInMs === null) return 0;
  const grainMs = resetGrainMs < secondMs ? resetGrainMs : 2 * secondMs;
  return grainMs * grainsPerWindow <= windowMs ? resetInMs : resetInMs - grainMs;
}

/**
 * The described window of a report: the one of its length where the response states that, else the one of its limit, else the longest.
 * Where more is left than a window has, the report is of another one.
 */
function windowFor(windows: readonly DialectWindow[], reading: Reading): DialectWindow | null {
  const statedMs = windowOf(reading);
  if (statedMs === null) {
    const possible = windows.filter(({ windowMs }) => mayHaveLeft(reading, windowMs));
    return possible.find(({ requests }) => requests === reading.limit) ?? possible.at(-1) ?? null;
  }
  const [only = null, ...others] = windows;
  const isAlone = only !== null && others.length === 0 && only.windowMs < dayMs === statedMs < dayMs;
  return windows.find(({ windowMs }) => windowMs === statedMs) ?? (isAlone ? only : null);
}

// Refusals

function throttleOf(
  dialect: Dialect,
  response: ResponseReader,
  readings: readonly Reading[],
  meters: readonly MeterReport[],
): Throttle | null {
  const { status } = response;
  const by = conditionOf(dialect, response);
  if (by?.isPermanent === true) return permanentBy(by.condition, statedMs(dialect, response));
  if (by === null && status !== 429 && !isLimitedInWords(dialect, response)) {
    const isOverload = status === 503 || status === 529;
    return isOverload ? { kind: 'overload', waitMs: statedMs(dialect, response) ?? response.bodyMs } : null;
  }
  const condition = by?.condition ?? null;
  const namedMs =
    statedMs(dialect, response) ??
    response.bodyMs ??
    exhaustedForMs(readings) ??
    namedWaitMs(response.fields, response.at) ??
    condition?.waitMs ??
    null;
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
    const isWaited = known !== null && known.kind !== 'permanent';
    const waitMs = isWaited ? describedWaitMs(dialect.waitIn, response) : null;
    return waitMs === null || known === null ? null : { ...known, waitMs };
  }
  const { condition, isPermanent } = by;
  const toldMs = describedWaitMs(dialect.waitIn, response) ?? known?.waitMs ?? response.statedMs;
  if (isPermanent) return permanentBy(condition, toldMs);
  const meter = known?.kind === 'rate' && condition.scope === undefined ? known.meter : null;
  return {
    kind: 'rate',
    waitMs: toldMs ?? response.bodyMs ?? condition.waitMs,
    meter,
    ...scopeOf(condition),
  };
}

/** The wait that a refusal states; most responses are none, and nobody asks then. */
const statedMs = (dialect: Dialect, response: ResponseReader): number | null =>
  describedWaitMs(dialect.waitIn, response) ?? response.statedMs;

/** The wait that a refusal states in the places which its dialect describes, the first that does; `null`: none of them. */
function describedWaitMs(places: readonly WaitPlace[], response: ResponseReader): number | null {
  for (const place of places) {
    const as = place.kind === 'field' ? place.field.as : place.as;
    const waitMs = longestWaitMs(textAt(place, response), (value) => timeLeftMs(value, as, response.at));
    if (waitMs !== null) return waitMs;
  }
  return null;
}

function textAt(place: WaitPlace, { fields, json, body }: ResponseReader): string | undefined {
  if (place.kind === 'field') return valueOf(place.field, fields);
  if (place.kind === 'sentence')
    return new RegExp(place.pattern, 'i').exec((body ?? '').slice(0, maxText))?.[1];
  const value = valueAt(json, place.pointer);
  return typeof value === 'string' || typeof value === 'number' ? String(value) : undefined;
}

const limited =
  /\brate.?limit(?:s|ed|ing)? (?:is |has been )?(?:exceeded|reached|hit)|\b(?:exceeded|reached|hit)\b[^.]{0,30}\brate.?limit|\btoo (?:many requests|frequent)\b|\bover (?:qps|rate)\b/i;

/**
 * A 403 that says in words that calls come too fast, of an upstream whose refusals nobody has described. A 418 (Binance) or 420 (Podio)
 * says so as well with a time.
 */
function isLimitedInWords({ throttledBy }: Dialect, response: ResponseReader): boolean {
  const { status, body } = response;
  if (throttledBy.length > 0 || ![403, 418, 420].includes(status)) return false;
  return limited.test(body ?? '') || (status !== 403 && (response.statedMs ?? response.bodyMs) !== null);
}

const permanentBy = (condition: RefusalCondition, waitMs: number | null): Throttle => ({
  kind: 'permanent',
  reason: 'quota',
  waitMs: waitMs ?? condition.waitMs,
  ...scopeOf(condition),
});

const scopeOf = (by: RefusalCondition | null): Pick<RefusalCondition, 'scope'> =>
  by?.scope === undefined ? {} : { scope: by.scope };

/**
 * The condition that the response meets, the most exact one of both kinds, the first of equals: the one with more parts, or with as many and
 * a text around that of the other. `null`: it meets none.
 */
function conditionOf(
  { throttledBy, permanentBy: lasting }: Dialect,
  response: ResponseReader,
): { readonly isPermanent: boolean; readonly condition: RefusalCondition } | null {
  let best: RefusalCondition | null = null;
  for (const list of [throttledBy, lasting])
    for (const one of list) if (meets(one, response) && (best === null || isMoreExact(one, best))) best = one;
  return best === null ? null : { isPermanent: lasting.includes(best), condition: best };
}

function isMoreExact(one: RefusalCondition, other: RefusalCondition): boolean {
  const [parts, others] = [one, other].map(
    ({ field, equals, body }) => (field === null ? 0 : 1) + (equals === null ? 0 : 1) + body.length,
  ) as [number, number];
  const isAround = (text: string): boolean => one.body.some((own) => own !== text && own.includes(text));
  return parts > others || (parts === others && other.body.length > 0 && other.body.every(isAround));
}

/** Does the response meet all parts of the condition? */
function meets(condition: ResponseCondition, { status, fields, body }: ResponseReader): boolean {
  if (!condition.statuses.includes(status)) return false;
  if (condition.field !== null) {
    const value = fields.get(condition.field);
    if (value === undefined || (condition.equals !== null && value.trim() !== condition.equals)) return false;
  }
  const text = condition.body.length === 0 ? '' : (body ?? '').toLowerCase();
  return condition.body.every((part) => text.includes(part));
}

function waitOf({ penaltyMs, windows, hintlessMs }: Dialect, namedMs: number | null): number | null {
  if (penaltyMs !== null) return Math.max(namedMs ?? 0, penaltyMs);
  const [shortest] = hintlessMs === null ? windows : [];
  return namedMs ?? (shortest === undefined ? null : Math.min(shortest.windowMs, maxGuessMs));
}

/** The meter whose window refused the call: the only one that is used up. `null`: not known, none or several are used up. */
function meterOf({ windows }: Dialect, meters: readonly MeterReport[]): MeterName | null {
  const [only, ...others] = meters.filter(({ level, limit }) => level !== null && level.highest >= limit);
  if (only !== undefined && others.length === 0) return only.meter;
  return windows.length > 0 ? null : 'requests';
}
