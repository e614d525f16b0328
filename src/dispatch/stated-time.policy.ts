/**
 * Times as upstreams write them, in fields, bodies and sentences: an instant, a duration, or a bare number.
 *
 * Owns: the grammar of one value. Does not own: which fields and members state a time (`retry-after.policy.ts`),
 * and what a reset means for a bucket (`feedback/limits.policy.ts`). Invariants: never throws, linear;
 * what is not exactly one of these forms is `null` ("no information"), never 0, because 0 would open a bucket.
 */
import type { TimeUnit } from '../config/settings.ts';
import { meaningOfWords } from '../words.policy.ts';

/** The two clocks an instant can be measured against. */
export interface ResponseTime {
  /** The response's own `Date` field; preferred, so that skew between our clock and theirs does not matter. */
  readonly date: string | null | undefined;
  /** Our wall clock when the head arrived, milliseconds since the epoch. */
  readonly now: number;
}

/** Instant at which a response was made: its own `Date`, else our clock. */
export function answeredAtMs({ date, now }: ResponseTime): number {
  return (typeof date === 'string' ? instantMs(date.trim()) : null) ?? now;
}

/** No spelling of a time is longer. Characters. */
const maxText = 128;
const decimal = /^\+?(?:\d+(?:\.\d*)?|\.\d+)(?:e\+?\d{1,2})?$/i;
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
  // `seconds=30`, `in 30 s`, `~30`, `30 ; reason=quota`, `30 (seconds)`, `2026-09-01T12:00:30Z[UTC]`, `/Date(1788264030000)/`
  const text = value
    .trim()
    .replace(/^(["'])(.*)\1$/, '$2')
    .replace(/^[a-z-]+=|^(?:in|after|for) |^~| ?;.*$|\.$|\[[\w/]+\]$|^\/Date\((?=\d)|(?<=\d)\)\/$/gi, '')
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
    .split(/(?<!\b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}|\b[a-z]{3,9} \d{1,2}),(?!\d{3}(?!\d))/i)
    .map((single) => single.trim())
    .filter((single) => single.length > 0);
}

// Durations

/** Milliseconds of a unit by its words, in the languages in which providers write. */
const units = meaningOfWords<number>([
  [1e-6, 'ns nanosecond nanoseconds'],
  [1e-3, 'us µs μs microsecond microseconds'], // U+00B5, what Go writes, and U+03BC, what it also reads
  [1, 'ms msec msecs millis millisecond milliseconds 毫秒'],
  [1_000, 's sec secs second seconds sekunde sekunden seconde secondes segundo segundos secondo secondi'],
  [1_000, 'секунда секунду секунды секунд 秒 초'],
  [60_000, 'm min mins minute minutes minuten minuto minutos minuti минута минуту минуты минут 分 分钟 분'],
  [3_600_000, 'h hr hrs hour hours stunde stunden heure heures hora horas ora ore час часа часов'],
  [3_600_000, '小时 時間 시간'],
  [86_400_000, 'd day days'],
]);
const unitWord = `(?:${[...units.keys()].toSorted((a, b) => b.length - a.length).join('|')})(?![a-zµμа-я])`;
const term = new RegExp(`(?:,? and |,? )?(\\d+(?:\\.\\d*)?|\\.\\d+)[ -]?(${unitWord})`, 'iy');
const iso8601 = /^p((?:\d+d)?)(?:t((?:\d+(?:\.\d+)?[hms])+))?$/i;
const clockTime = /^(\d{1,2}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)$/;

/** How a duration with its unit is written within a sentence: the source of a pattern for what `durationMs` reads. */
export const durationInText = `(?:\\d{1,2}:[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?|\\bpt(?:\\d+(?:\\.\\d+)?[hms])+|(?:(?:,? and |,? )?(?:(?<!\\d)\\d{1,12}(?:\\.\\d{1,12})?|\\.\\d{1,12})[ -]?${unitWord})+)`;

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
    const factor = units.get(unit.toLowerCase());
    if (factor === undefined) return null;
    total += scaled(digits, factor);
  }
  return Number.isFinite(total) ? total : null;
}

// Instants

const monthNames = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
/** Hours by which zones of North America, which RFC 822 allowed in dates, are behind UTC, in winter. */
const zoneHours = { e: 5, c: 6, m: 7, p: 8 } as const;

const weekday = '(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? )?';
const month = `(?<month>(?:${monthNames.join('|')})[a-z]{0,6})`;
const dates = [
  '(?<year>\\d{4})(?<dash>[-/]?)(?<month>\\d{2})\\k<dash>(?<day>\\d{2})', // RFC 3339, and ISO 8601 without its hyphens
  `(?<day>\\d{1,2})[ -]${month}[ -](?<year>\\d{4}|\\d{2})`, // RFC 9110, RFC 850
  `${month} {1,2}(?<day>\\d{1,2})(?:,? (?<year>\\d{4}))?`, // C, Java, JavaScript, and people in America
  '(?<month>\\d{1,2})/(?<day>\\d{1,2})/(?<year>\\d{4})', // .NET
];
const clock =
  '(?<hour>\\d{1,2}):?(?<minute>\\d{2})(?::?(?<second>\\d{2}(?:\\.\\d{1,9})?))?(?: (?<half>[ap])m)?';
const zone =
  '(?<zone> ?(?:(?:gmt|utc?|z)(?![a-z])|(?<us>[ecmp])(?<season>[sd])t|(?=[+-]))(?<shift>[+-]\\d{2}:?\\d{2})?(?: utc| ?\\([a-z ]+\\))?| ?\\((?:z|utc|gmt)\\))?';
/** How an instant is written within a sentence, where it has parts of these names. */
export const instantInText = `${weekday}(?:${dates.join('|')})[t ,]{1,2}${clock}${zone}(?: (?<lastYear>\\d{4})(?!\\d))?`;
const wholeInstant = new RegExp(`^${instantInText}$`, 'i');

/**
 * An instant as milliseconds since the epoch, or `null`. Two-digit years below 70 are of this century. It must have a zone, because local
 * time names no instant; only what C writes is in UTC without one.
 */
export function instantMs(text: string): number | null {
  const parts = text.length > maxText ? undefined : wholeInstant.exec(text)?.groups;
  if (parts === undefined) return null;
  const {
    month = '',
    day,
    hour,
    minute,
    second = 0,
    half,
    lastYear,
    zone,
    us = '',
    season,
    shift = '',
  } = parts;
  const year = parts['year'] ?? lastYear ?? '';
  if (year === '' || (zone === undefined && lastYear === undefined)) return null;
  const century = year.length > 2 ? '' : Number(year) < 70 ? '20' : '19';
  const ordinal = Number(month) || monthNames.indexOf(month.slice(0, 3).toLowerCase()) + 1;
  const hours = half === undefined ? Number(hour) : (Number(hour) % 12) + (/p/i.test(half) ? 12 : 0);
  // 60 is a leap second, 24:00 is not a time of day.
  if (!(hours <= 23 && Number(minute) <= 59 && Number(second) < 61)) return null;
  // The runtime's calendar, not its clock. It takes 30 February for 2 March.
  // oxlint-disable-next-line no-restricted-globals
  const midnight = new Date(Date.UTC(Number(century + year), ordinal - 1, Number(day)));
  if (midnight.getUTCMonth() !== ordinal - 1 || midnight.getUTCDate() !== Number(day)) return null;
  const [, sign, shiftHours = 0, shiftMinutes = 0] = /([+-])(\d\d):?(\d\d)/.exec(shift) ?? [];
  const behind = zoneHours[us.toLowerCase() as keyof typeof zoneHours] ?? 0;
  const ahead = (Number(shiftHours) * 60 + Number(shiftMinutes)) * (sign === '-' ? -1 : 1);
  const toUtc = behind * 60 - (/d/i.test(season ?? '') ? 60 : 0) - ahead;
  return midnight.getTime() + (hours * 60 + Number(minute) + toUtc) * 60_000 + Number(second) * 1000;
}
