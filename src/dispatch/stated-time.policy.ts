/**
 * Times as upstreams write them, in fields, bodies and sentences: an instant, a duration, or a bare number.
 *
 * Owns: the grammar of one value. Does not own: which fields and members state a time (`retry-after.policy.ts`),
 * and what a reset means for a bucket (`feedback/reading.policy.ts`). Invariants: never throws, linear;
 * what is not exactly one of these forms is `null` ("no information"), never 0, because 0 would open a bucket.
 */
import type { TimeUnit } from '../config/settings.ts';

/** The two clocks an instant can be measured against. */
export interface ResponseTime {
  /** The response's own `Date` field; preferred, so that skew between our clock and theirs does not matter. */
  readonly date: string | null | undefined;
  /** Our wall clock when the head arrived, milliseconds since the epoch. */
  readonly now: number;
}

/** Instant at which a response was made: its own `Date`, else our clock. */
function answeredAtMs({ date, now }: ResponseTime): number {
  return (typeof date === 'string' ? instantMs(date.trim()) : null) ?? now;
}

/** No spelling of a time is longer. Characters. */
const maxText = 128;
const decimal = /^(?:\d+(?:\.\d*)?|\.\d+)$/;
const grouped = /^\d{1,3}(?:,\d{3})+(?:\.\d*)?$/;
const firstEpochMs = 1e12;
const firstEpochSeconds = 1e9;
/** An instant without a zone that is so near in UTC is one of UTC: other zones are half an hour away at least. */
const maxWithoutZoneMs = 1_740_000;

/**
 * Milliseconds from the response to the time that a value states, not rounded, negative for the past; `null`: it states none. A value
 * that shows what it is (an instant, a number with its unit) is read as that, a bare number in the unit `as`. `inferred`: epoch
 * milliseconds from 1e12, epoch seconds from 1e9, else seconds.
 */
export function timeLeftMs(value: string, as: TimeUnit, at: ResponseTime): number | null {
  // `seconds=30`, `30;reason=quota`, `30 (seconds)`, `2026-09-01T12:00:30Z[UTC]`
  const text = value
    .trim()
    .replace(/^"(.*)"$/, '$1')
    .replace(/^[a-z-]+=|;.*$|\.$|\[[\w/]+\]$/gi, '')
    .replace(/ ?\(([a-z]+)\)$/i, ' $1');
  if (text.length === 0 || text.length > maxText) return null;
  if (decimal.test(text)) return fromNumber(text, as, at);
  if (grouped.test(text)) return fromNumber(text.replaceAll(',', ''), as, at);
  const instant = instantMs(text);
  if (instant !== null) return instant - answeredAtMs(at);
  const leftInUtcMs = (instantMs(`${text}Z`) ?? NaN) - answeredAtMs(at);
  return leftInUtcMs > 0 && leftInUtcMs <= maxWithoutZoneMs ? leftInUtcMs : durationMs(text);
}

function fromNumber(digits: string, as: TimeUnit, at: ResponseTime): number | null {
  const number = Number(digits);
  if (!Number.isFinite(number)) return null;
  switch (as) {
    case 'inferred':
      // Nanoseconds, microseconds, milliseconds.
      for (const perMs of [1e6, 1e3, 1])
        if (number >= firstEpochMs * perMs) return number / perMs - answeredAtMs(at);
      return number >= firstEpochSeconds ? number * 1000 - answeredAtMs(at) : scaled(digits, 1000);
    case 'seconds':
      return scaled(digits, 1000);
    case 'milliseconds':
      return number;
    case 'epoch-seconds':
      return scaled(digits, 1000) - answeredAtMs(at);
    case 'epoch-milliseconds':
      return number - answeredAtMs(at);
    case 'date':
    case 'duration':
      return null;
  }
}

/** Multiplies without the rounding errors of binary fractions: 2.114999999 s is 2114.999999 ms. */
function scaled(digits: string, factor: number): number {
  const product = Number(digits) * factor;
  const nanoseconds = product * 1e6;
  return nanoseconds < Number.MAX_SAFE_INTEGER ? Math.round(nanoseconds) / 1e6 : product;
}

/** The values of a field that was sent more than once. The comma of a date, behind the name of a day, and that of thousands stay. */
export function singleValues(value: string): readonly string[] {
  return value
    .split(/(?<!\b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}),(?!\d{3}(?!\d))/i)
    .map((single) => single.trim())
    .filter((single) => single.length > 0);
}

// Durations

const units = [
  [/^(?:ms|msecs?|millis|milliseconds?)$/, 1],
  [/^(?:s|secs?|seconds?)$/, 1_000],
  [/^(?:m|mins?|minutes?)$/, 60_000],
  [/^(?:h|hrs?|hours?)$/, 3_600_000],
  [/^(?:d|days?)$/, 86_400_000],
  [/^(?:us|µs|μs|microseconds?)$/, 1e-3], // U+00B5, what Go writes, and U+03BC, what it also reads
  [/^(?:ns|nanoseconds?)$/, 1e-6],
] as const;

const unitWord =
  '(?:milliseconds?|millis|msecs?|ms|microseconds?|us|µs|μs|nanoseconds?|ns|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-zµμ])';
const term = new RegExp(`(?:,? and |,? )?(\\d+(?:\\.\\d*)?|\\.\\d+)[ -]?(${unitWord})`, 'iy');
const iso8601 = /^p((?:\d+d)?)(?:t((?:\d+(?:\.\d+)?[hms])+))?$/i;
const clockTime = /^(\d{1,2}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)$/;

/** How a duration with its unit is written within a sentence: the source of a pattern for what `durationMs` reads. */
export const durationInText = `(?:\\d{1,2}:[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?|(?:(?:,? and |,? )?(?:\\d+(?:\\.\\d+)?|\\.\\d+)[ -]?${unitWord})+)`;

/**
 * Milliseconds of a duration that states its units, not rounded, or `null`: Go's form (`7m12s`, `58.891s`, `850µs`), words (`1 minute
 * and 30 seconds`), ISO 8601 without months (`PT1M30S`) and hours, minutes and seconds (`00:01:30`).
 */
export function durationMs(text: string): number | null {
  if (text.length > maxText) return null;
  const clock = clockTime.exec(text);
  if (clock !== null) return termsMs(`${clock[1]}h${clock[2]}m${clock[3]}s`);
  const iso = iso8601.exec(text);
  return termsMs(iso === null ? text : `${iso[1]}${iso[2] ?? ''}`);
}

function termsMs(text: string): number | null {
  if (text === '' || /^[ ,]/.test(text)) return null;
  let total = 0;
  term.lastIndex = 0;
  for (let at = 0; at < text.length; at = term.lastIndex) {
    const [, digits = '', unit = ''] = term.exec(text) ?? [];
    const factor = units.find(([pattern]) => pattern.test(unit.toLowerCase()))?.[1];
    if (factor === undefined) return null;
    total += scaled(digits, factor);
  }
  return Number.isFinite(total) ? total : null;
}

// Instants

const monthNames = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
const time = '(\\d{2}:\\d{2}(?::\\d{2}(?:\\.\\d{1,9})?)?)';
const offset = '([+-]\\d{2}:?\\d{2})';
const zone = `(?:gmt|utc|ut|z)?${offset}?`;
const form = (pattern: string): RegExp => new RegExp(`^${pattern}$`, 'i');

/** RFC 9110's HTTP-date and RFC 850's; servers end them in GMT, UTC or an offset. */
const httpDate = form(
  `(?:[a-z]{3,9},? )?(\\d{1,2})[ -]([a-z]{3})[ -](\\d{4}|\\d{2}) ${time} (?=.)${zone}(?: utc)?`,
);
/** C's `asctime`, and what JavaScript writes: `Tue Sep 01 2026 12:00:30 GMT+0000 (Coordinated Universal Time)`. */
const asctime = form(`[a-z]{3} ([a-z]{3}) ([ \\d]\\d) ${time} (\\d{4})`);
const scriptDate = form(
  `[a-z]{3} ([a-z]{3}) (\\d{2}) (\\d{4}) ${time} (?:gmt|utc)${offset}?(?: \\([^()]*\\))?`,
);
/** RFC 3339, with or without seconds, and the blanks that some languages write. An offset is required: local time names no instant. */
const rfc3339 = form(`(\\d{4})-(\\d{2})-(\\d{2})[t ]${time} ?(?=.)${zone}(?: utc)?`);

/** How an instant is written within a sentence. */
export const instantInText =
  '[a-z]{3}, \\d{2} [a-z]{3} \\d{4} \\d{2}:\\d{2}:\\d{2} (?:gmt|utc)|\\d{4}-\\d{2}-\\d{2}[t ]\\d{2}:\\d{2}(?::\\d{2}(?:\\.\\d{1,9})?)?(?: ?\\(?(?:z|utc|gmt|[+-]\\d{2}:?\\d{2})\\)?)?';

/** An instant as milliseconds since the epoch, or `null`. Two-digit years below 70 are of this century. */
export function instantMs(text: string): number | null {
  if (text.length > maxText) return null;
  const http = httpDate.exec(text);
  if (http !== null) {
    const [, day, month, year = '', clock, shift] = http;
    const century = year.length > 2 ? '' : Number(year) < 70 ? '20' : '19';
    return fromParts([century + year, monthOf(month), day], clock, shift);
  }
  const iso = rfc3339.exec(text);
  if (iso !== null) return fromParts([iso[1], iso[2], iso[3]], iso[4], iso[5]);
  const c = asctime.exec(text);
  if (c !== null) return fromParts([c[4], monthOf(c[1]), c[2]], c[3]);
  const script = scriptDate.exec(text);
  return script === null ? null : fromParts([script[3], monthOf(script[1]), script[2]], script[4], script[5]);
}

const monthOf = (name = ''): number => monthNames.indexOf(name.toLowerCase()) + 1;

function fromParts(
  date: readonly (string | number | undefined)[],
  clock = '',
  shift = '+0000',
): number | null {
  const [year = NaN, month = NaN, day = NaN] = date.map(Number);
  const [hour = NaN, minute = NaN, second = 0] = clock.split(':').map(Number);
  // 60 is a leap second, 24:00 is not a time of day.
  if (!(hour <= 23 && minute <= 59 && second < 61)) return null;
  // The runtime's calendar, not its clock. It takes 30 February for 2 March.
  // oxlint-disable-next-line no-restricted-globals
  const midnight = new Date(Date.UTC(year, month - 1, day));
  if (midnight.getUTCMonth() !== month - 1 || midnight.getUTCDate() !== day) return null;
  const digits = shift.replace(':', '');
  const shiftMinutes = Number(digits.slice(1, 3)) * 60 + Number(digits.slice(3));
  const minutes = hour * 60 + minute - (digits.startsWith('-') ? -shiftMinutes : shiftMinutes);
  return midnight.getTime() + minutes * 60_000 + second * 1000;
}
