/**
 * Instants in the spellings that responses use, as milliseconds since the epoch: HTTP-date (RFC 9110 §5.6.7, all three
 * forms) and RFC 3339.
 *
 * Owns: the calendar arithmetic. Does not own: what an instant means, and the present. Invariant: anything that is
 * not exactly one of these forms is `null`; nothing is guessed and nothing throws.
 */

const monthNames = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
const dayMs = 86_400_000;

/** Days from 1970-01-01 to a date of the proleptic Gregorian calendar (Hinnant's `days_from_civil`). */
function daysFromCivil(year: number, month: number, day: number): number {
  const shifted = month <= 2 ? year - 1 : year;
  const era = Math.floor(shifted / 400);
  const yearOfEra = shifted - era * 400;
  const dayOfYear = Math.floor((153 * (month > 2 ? month - 3 : month + 9) + 2) / 5) + day - 1;
  const dayOfEra = yearOfEra * 365 + Math.floor(yearOfEra / 4) - Math.floor(yearOfEra / 100) + dayOfYear;
  return era * 146_097 + dayOfEra - 719_468;
}

function daysInMonth(year: number, month: number): number {
  if (month === 2) return year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0) ? 29 : 28;
  return month === 4 || month === 6 || month === 9 || month === 11 ? 30 : 31;
}

function instant(date: readonly [number, number, number], time: string): number | null {
  const [year, month, day] = date;
  const [hour = NaN, minute = NaN, second = NaN] = time.split(':').map(Number);
  if (month < 1 || month > 12 || day < 1 || day > daysInMonth(year, month)) return null;
  // 60 is a leap second, 24:00 is not a time of day.
  if (!(hour <= 23 && minute <= 59 && second < 61)) return null;
  return daysFromCivil(year, month, day) * dayMs + (hour * 3600 + minute * 60 + second) * 1000;
}

const imfFixdate = /^[a-z]{3}, (\d{2}) ([a-z]{3}) (\d{4}) (\d{2}:\d{2}:\d{2}) gmt$/i;
const rfc850Date = /^[a-z]{6,9}, (\d{2})-([a-z]{3})-(\d{2}) (\d{2}:\d{2}:\d{2}) gmt$/i;
const asctimeDate = /^[a-z]{3} ([a-z]{3}) ([ \d]\d) (\d{2}:\d{2}:\d{2}) (\d{4})$/i;

/** Instant of an HTTP-date, or `null`. Two-digit years below 70 are of this century. */
export function httpDateMs(text: string): number | null {
  const fixed = imfFixdate.exec(text);
  if (fixed !== null) return fromParts(fixed[3], fixed[2], fixed[1], fixed[4]);
  const old = rfc850Date.exec(text);
  if (old !== null) return fromParts(`${Number(old[3]) < 70 ? '20' : '19'}${old[3]}`, old[2], old[1], old[4]);
  const c = asctimeDate.exec(text);
  return c === null ? null : fromParts(c[4], c[1], c[2], c[3]);
}

function fromParts(year = '', month = '', day = '', time = ''): number | null {
  return instant([Number(year), monthNames.indexOf(month.toLowerCase()) + 1, Number(day)], time);
}

const rfc3339 =
  /^(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)(?:[Zz]|([+-])(\d{2}):?(\d{2}))$/;

/** Instant of an RFC 3339 timestamp, or `null`. The offset is required: local time names no instant. */
export function rfc3339Ms(text: string): number | null {
  const parts = rfc3339.exec(text);
  if (parts === null) return null;
  const local = instant([Number(parts[1]), Number(parts[2]), Number(parts[3])], parts[4] ?? '');
  if (local === null || parts[5] === undefined) return local;
  const offsetMs = (Number(parts[6]) * 60 + Number(parts[7])) * 60_000;
  return parts[5] === '+' ? local - offsetMs : local + offsetMs;
}
