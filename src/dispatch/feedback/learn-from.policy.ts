/**
 * What a response teaches: the one entrance to the feedback policies. Each kind of upstream is read as its providers write, and any of them
 * as its dialect is described in configuration (`speaks`): windows, fields, conditions of refusals, and where they state their waits.
 * Total; any facts give a `Feedback`.
 */
import type { Feedback, MeterName, MeterReport, Throttle, UpstreamKind } from '../../call.ts';
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
import { dayMs, secondMs } from '../../time-units.ts';
import { longestWaitMs, namedWaitMs, timeLeftMs } from '../stated-time.policy.ts';
import { learnFromCommerce } from './commerce.policy.ts';
import { valueAt } from './json.policy.ts';
import { learnFromModel } from './language-model.policy.ts';
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
  believable,
  type ResponseFacts,
  readerOf,
  type ResponseReader,
} from './response.policy.ts';

/** With this an upstream says that the credential is not valid, or not any more (RFC 9110 §15.5.2): it ran nothing. */
const refusedStatus = 401;
/** A refusal that states no wait is taken to last for the shortest described window, but no longer than this. Milliseconds. */
const maxGuessMs = 60_000;
/** How much of a body words and described patterns are looked for in, and the longest name of a quota. Characters. */
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
  expiredBy: [{ statuses: [refusedStatus], field: null, equals: null, body: [] }],
  separators: [],
  namedIn: null,
  penaltyMs: null,
  waitIn: [],
  hintlessMs: null,
  bodyStatuses: [],
};

/** Learns from one response. Never throws; a response that states nothing teaches nothing. */
export function learnFrom(
  kind: UpstreamKind,
  facts: ResponseFacts,
  described: Dialect | null = null,
): Feedback {
  const response = readerOf(facts, described ?? unknownDialect);
  const own = readers[kind](response);
  const throttle = throttleOf(response, own);
  const isExpired = response.dialect.expiredBy.some((one) => meets(one, response));
  const refusesCredential = own.errorStatus === refusedStatus || isExpired;
  // No meter is at fault then.
  const isCrowded = throttle?.kind === 'rate' && saysConcurrency(response);
  return believable({
    ...own,
    throttle: isCrowded ? { ...throttle, meter: null } : throttle,
    ...(refusesCredential ? { refusesCredential } : {}),
    ...(isCrowded ? { refusesConcurrency: true } : {}),
  });
}

const readers = { 'language-model': learnFromModel, commerce: learnFromCommerce, generic: learnFromDialect };

function learnFromDialect(response: ResponseReader): Feedback {
  const { windows, namedIn } = response.dialect;
  const readings = readingsOf(response);
  const meters = windows.length === 0 ? reportsOf(readings) : windowReports(readings, response);
  const name = namedIn === null ? '' : (response.fields.get(namedIn)?.trim() ?? '');
  return {
    meters,
    throttle: refusalByStatus(response, meters),
    ...(name === '' || name.length > maxName ? {} : { scope: { name } }),
  };
}

// Fields and windows

function readingsOf(response: ResponseReader): readonly Reading[] {
  const { at, dialect, fields } = response;
  if (dialect.fields === null) return unownedReadings(fields, at);
  return dialect.fields.flatMap((one) => readingOf(one, response) ?? []);
}

/**
 * What one set of fields states; `null`: the response has none of them. A field with a rate stands for a limit of one second's calls, or
 * of as many as a leaky window is described to let pass at once.
 */
function readingOf(described: DialectFields, { at, dialect, fields }: ResponseReader): Reading | null {
  const countIn = (field: CountField | null): number | null => count(valueOf(field, fields));
  const [limit, used] = [countIn(described.limit), countIn(described.used)];
  const [remaining, rate] = [countIn(described.remaining), countIn(described.rate)];
  const timeIn = (field: TimeField | null): number | null =>
    reset(valueOf(field, fields), at, field?.as).resetInMs;
  const resetInMs = timeIn(described.reset);
  if ([limit, used, remaining, resetInMs, rate].every((value) => value === null)) return null;
  const { window } = described;
  const isRate = rate !== null && rate > 0;
  const [only] = dialect.windows.length === 1 ? dialect.windows : [];
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
function windowReports(readings: readonly Reading[], { at, dialect }: ResponseReader): MeterReport[] {
  const reports: MeterReport[] = [];
  for (const reading of readings) {
    const window = windowFor(dialect.windows, reading);
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

const limited =
  /\brate.?limit(?:s|ed|ing)? (?:is |has been )?(?:exceeded|reached|hit)|\b(?:exceeded|reached|hit)\b[^.]{0,30}\brate.?limit|\btoo (?:many requests|frequent)\b|\bover (?:qps|rate)\b/i;

/**
 * What a status says of itself. Of an upstream whose refusals nobody has described, a 403 in words, and a 418 (Binance) or 420 (Podio) with
 * a time or in words, say that calls come too fast as well.
 */
function refusalByStatus(response: ResponseReader, meters: readonly MeterReport[]): Throttle | null {
  const { status, body, dialect } = response;
  if (status === 503 || status === 529) return { kind: 'overload', waitMs: null };
  const mayBeLimited = dialect.throttledBy.length === 0 && [403, 418, 420].includes(status);
  const isLimited =
    mayBeLimited &&
    (limited.test(body ?? '') || (status !== 403 && (response.statedMs() ?? response.bodyMs()) !== null));
  return status === 429 || isLimited ? { kind: 'rate', waitMs: null, meter: meterOf(dialect, meters) } : null;
}

/** The refusal with what described conditions make of it, and its wait, also where its kind finds none in its own fields. */
function throttleOf(response: ResponseReader, { throttle: known, meters }: Feedback): Throttle | null {
  const { at, dialect, fields } = response;
  const { throttledBy, permanentBy, waitIn } = dialect;
  const [condition = null] = [...throttledBy, ...permanentBy]
    .filter((one) => meets(one, response))
    .toSorted((a, b) => exactness(b) - exactness(a));
  if (condition === null && (known === null || known.kind === 'permanent')) return known;
  const scope = condition?.scope === undefined ? {} : { scope: condition.scope };
  const statedMs = describedWaitMs(waitIn, response) ?? known?.waitMs ?? response.statedMs();
  if (condition !== null && permanentBy.includes(condition))
    return { kind: 'permanent', reason: 'quota', waitMs: statedMs ?? condition.waitMs, ...scope };
  const waitMs =
    statedMs ??
    response.bodyMs() ??
    exhaustedForMs(readingsOf(response)) ??
    namedWaitMs(fields, at) ??
    condition?.waitMs ??
    null;
  if (condition === null && known !== null && known.kind !== 'rate') return { ...known, waitMs };
  // The windows of a bucket do not count what concerns more or less than the bucket.
  const isOfBucket = (condition?.scope ?? 'bucket') === 'bucket';
  const meter = known?.kind === 'rate' ? known.meter : meterOf(dialect, meters);
  return { kind: 'rate', waitMs: waitOf(dialect, waitMs), meter: isOfBucket ? meter : null, ...scope };
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

function textAt(place: WaitPlace, { fields, json, body }: ResponseReader): string | undefined {
  if (place.kind === 'field') return valueOf(place.field, fields);
  if (place.kind === 'sentence')
    return new RegExp(place.pattern, 'i').exec((body ?? '').slice(0, maxText))?.[1];
  const value = valueAt(json(), place.pointer);
  return typeof value === 'string' || typeof value === 'number' ? String(value) : undefined;
}

/** Of several conditions that a response meets the one with more parts counts, then the one with more text, then the first. */
const exactness = ({ field, equals, body }: RefusalCondition): number =>
  10_000 * ([field, equals].filter((part) => part !== null).length + body.length) + body.join('').length;

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

const concurrency = /concurren|\bsimultaneous|\bmax(?:imum)? parallel\b|并发|並發/i;
/** The address of a page about limits says nothing of this refusal. */
const address = /\bhttps?:\S+/g;
/** Fields in which providers name the limit that refused a call. */
const reasons = ['x-rate-limit-problem', 'stripe-rate-limited-reason'];

/** True where a refusal says that too many calls are in flight at once: a word of many providers, and no field of any. */
const saysConcurrency = ({ fields, body }: ResponseReader): boolean =>
  reasons.some((field) => concurrency.test(fields.get(field) ?? '')) ||
  concurrency.test((body ?? '').slice(0, maxText).replaceAll(address, ''));
