/**
 * Times as upstreams write them, in fields, bodies and sentences (an instant, a duration, or a bare number), and what a response says with
 * them about when to try again: in `Retry-After`, `retry-after-ms` and the fields named after them, as real servers send them; in a member
 * of a refusal's body (`parameters.retry_after` of Telegram, `retryDelay` of Google); else in a sentence of it ("Please try again in 20s").
 * Resets of limits are none of these.
 *
 * Invariants: never throws, linear, and bounded whatever the text; what is not exactly one of these forms is `null` ("no information"),
 * never 0, because clients that took garbage for 0 hammer their upstream at once; a wait is never earlier than stated (rounded up; of several
 * values the longest); a sentence that states how a limit counts ("5 requests per 60 seconds") is no wait.
 */
import type { TimeUnit } from '../config/settings.ts';
import { meaningOfWords } from '../words.policy.ts';
import { parseJson, stringAt } from './feedback/json.policy.ts';
import { secondMs } from '../time-units.ts';

/** The two clocks an instant can be measured against. */
export interface ResponseTime {
  /** The response's own `Date` field; preferred, so that skew between our clock and theirs does not matter. */
  readonly date: string | null | undefined;
  /** Our wall clock when the head arrived, milliseconds since the epoch. */
  readonly now: number;
}

/** Instant at which a response was made: its own `Date`, else our clock. */
const answeredAtMs = ({ date, now }: ResponseTime): number => instantMs(date?.trim() ?? '') ?? now;

/** No spelling of a time is longer. Characters. */
const maxText = 128;
const decimal = /^\+?(?:\d+(?:\.\d*)?|\.\d+)(?:e\+?\d{1,2})?$/i;
const grouped = /^\d{1,3}(?:,\d{3})+(?:\.\d*)?$/;
const firstEpochMs = 1e12;
/** A bare number from here on is an instant, whatever unit its name has. Seconds. */
const firstInstant = 1e9;
/** An instant without a zone that is so near in UTC is one of UTC: other zones are half an hour away at least. */
const maxWithoutZoneMs = 1_740_000;

/**
 * Milliseconds from the response to the time that a value states, not rounded, negative for the past; `null`: it states none. A value
 * that shows what it is (an instant, a number with its unit) is read as that, a bare number in the unit `as`. `inferred`: epoch
 * milliseconds (micro-, nanoseconds) from 1e12, epoch seconds from 1e9, else seconds.
 */
export function timeLeftMs(value: string, as: TimeUnit, at: ResponseTime): number | null {
  // `seconds=30`, `in 30 s`, `~30`, `30 ; reason=quota`, `30 (seconds)`, `2026-09-01T12:00:30Z[UTC]`, `/Date(1788264030000)/`
  const text = value
    .trim()
    .replace(/^(["'])(.*)\1$/, '$2')
    .replace(/^[a-z-]+=|^(?:in|after|for) |^~| ?;.*$|\.$|\[[\w/]+\]$|^\/Date\((?=\d)|(?<=\d)\)\/$/gi, '')
    .replace(/ ?\(([a-z]+)\)$/i, ' $1');
  if (text.length === 0 || text.length > maxText) return null;
  if (decimal.test(text) || grouped.test(text)) return fromNumber(text.replaceAll(',', ''), as, at);
  const instant = instantMs(text);
  if (instant !== null) return instant - answeredAtMs(at);
  const leftInUtcMs = (instantMs(`${text.replace('T', ' ')} UTC`) ?? NaN) - answeredAtMs(at);
  return leftInUtcMs > 0 && leftInUtcMs <= maxWithoutZoneMs ? leftInUtcMs : durationMs(text);
}

function fromNumber(digits: string, as: TimeUnit, at: ResponseTime): number | null {
  const number = Number(digits);
  if (!Number.isFinite(number) || as === 'date' || as === 'duration') return null;
  const perMs = as === 'inferred' ? [1e6, 1e3, 1].find((per) => number >= firstEpochMs * per) : undefined;
  if (perMs !== undefined) return number / perMs - answeredAtMs(at);
  const ms = as.endsWith('milliseconds') ? number : scaled(digits, secondMs);
  const isInstant = as.startsWith('epoch') || (as === 'inferred' && number >= firstInstant);
  return isInstant ? ms - answeredAtMs(at) : ms;
}

/** Multiplies without the rounding errors of binary fractions: 2.114999999 s is 2114.999999 ms. */
function scaled(digits: string, factor: number): number {
  const product = Number(digits) * factor;
  const nanoseconds = product * 1e6;
  return nanoseconds < Number.MAX_SAFE_INTEGER ? Math.round(nanoseconds) / 1e6 : product;
}

/** The values of a field that was sent more than once. The comma of a date, behind the name of a day, and that of thousands stay. */
export const singleValues = (value: string): readonly string[] =>
  value
    .split(/(?<!\b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}|\b[a-z]{3,9} \d{1,2}),(?!\d{3}(?!\d))/i)
    .map((single) => single.trim())
    .filter((single) => single.length > 0);

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
/** How a duration with its unit is written within a sentence: the source of a pattern for what `durationMs` reads. */
const durationInText = `(?:\\d{1,2}:[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?|\\bpt(?:\\d+(?:\\.\\d+)?[hms])+|(?:(?:,? and |,? )?(?:(?<!\\d)\\d{1,12}(?:\\.\\d{1,12})?|\\.\\d{1,12})[ -]?${unitWord})+)`;

/**
 * Milliseconds of a duration that states its units, not rounded, or `null`: Go's form (`7m12s`, `58.891s`, `850µs`), words (`1 minute
 * and 30 seconds`), ISO 8601 without months (`PT1M30S`) and hours, minutes and seconds (`00:01:30`).
 */
export function durationMs(text: string): number | null {
  const terms = text
    .replace(/^(\d{1,2}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)$/, '$1h$2m$3s')
    .replace(/^p((?:\d+d)?)(?:t((?:\d+(?:\.\d+)?[hms])+))?$/i, '$1$2');
  if (terms === '' || terms.length > maxText || /^[ ,]/.test(terms)) return null;
  let total = 0;
  term.lastIndex = 0;
  for (let at = 0; at < terms.length; at = term.lastIndex) {
    const [, digits = '', unit = ''] = term.exec(terms) ?? [];
    const factor = units.get(unit.toLowerCase());
    if (factor === undefined) return null;
    total += scaled(digits, factor);
  }
  return Number.isFinite(total) ? total : null;
}

// Instants

const month = '(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}';
const dates = [
  '\\d{4}([-/])\\d{2}\\1\\d{2}', // RFC 3339
  `\\d{1,2}[ -]${month}[ -](?:\\d{4}|\\d{2})`, // RFC 9110, RFC 850
  `${month} {1,2}\\d{1,2}(?:,? \\d{4})?`, // C, Java, JavaScript, and people in America
  '\\d{1,2}/\\d{1,2}/\\d{4}', // .NET
];
const zone =
  ' ?(?:(?:(?:gmt|utc?|z)(?![a-z])|[ecmp][sd]t|(?=[+-]))(?:[+-]\\d{2}:?\\d{2})?(?: utc| ?\\([a-z ]+\\))?|\\((?:z|utc|gmt)\\))';
/** How an instant is written within a sentence. */
const instantInText = `(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? )?(?:${dates.join('|')})[t ,]{1,2}\\d{1,2}:\\d{2}(?::\\d{2}(?:\\.\\d{1,9})?)?(?: [ap]m)?(?:${zone})?(?: \\d{4}(?!\\d))?`;
const wholeInstant = new RegExp(`^${instantInText}$`, 'i');
/** It must have a zone, because local time names no instant; only what C writes is in UTC without one. */
const hasZone = new RegExp(`(?:${zone}(?: \\d{4})?|:\\d{2} \\d{4})$`, 'i');

/** An instant as milliseconds since the epoch, or `null`. */
export function instantMs(text: string): number | null {
  if (text.length > maxText || !wholeInstant.test(text) || !hasZone.test(text)) return null;
  const written = text.replace(/ ?\((?:z|utc|gmt)\)$/i, ' UTC').replace(/:\d{2} \d{4}$/, '$& UTC');
  // The runtime's calendar, not its clock.
  // oxlint-disable-next-line no-restricted-globals
  const ms = Date.parse(written);
  return Number.isNaN(ms) ? null : ms;
}

// Waits

/** Longest wait believed, the longest window any known limiter has: 24 h in milliseconds. */
export const maxRetryAfterMs = 86_400_000;

const maxWaitField = 256;

type Fields = ReadonlyMap<string, string>;

/** The longer of two waits, of which there may be none. */
const longer = (one: number | null, other: number | null): number | null =>
  one === null || other === null ? (one ?? other) : Math.max(one, other);

/** A stated time as a wait: rounded up, a day at most; `null` for one that is over. */
const usableWaitMs = (waitMs: number | null): number | null =>
  waitMs === null || !Number.isFinite(waitMs) || waitMs <= 0
    ? null
    : Math.min(Math.ceil(waitMs), maxRetryAfterMs);

/** The longest wait that the values of a field state; one of a day and more counts only where there is no other. */
export function longestWaitMs(
  value: string | undefined,
  read: (single: string) => number | null,
): number | null {
  if (value === undefined || value.length > maxWaitField) return null;
  const waits = singleValues(value).flatMap((single) => usableWaitMs(read(single)) ?? []);
  const believed = waits.filter((waitMs) => waitMs < maxRetryAfterMs);
  return waits.length === 0 ? null : Math.max(...(believed.length > 0 ? believed : waits));
}

// Names

/**
 * What a word of a name says of its value. `end`: the end of a wait · `begin`: a wait or its end, where the name has a `time` or a `unit`
 * as well · `time` and `unit`: how a time is given · `plain`: they change
 * nothing of it. A name with any other word says something else.
 */
const words = meaningOfWords<'end' | 'begin' | 'time' | 'unit' | 'plain'>([
  ['end', 'reset resets wait waiting backoff cooldown delay regain replenishment replenish renew renews'],
  ['end', 'refill refills resume resumes unblock unblocks unlock unlocks until'],
  ['begin', 'retry try again next available allowed remaining left throttle throttled ban banned'],
  ['begin', 'block blocked lock locked lockout suspended penalty pause sleep estimated'],
  ['time', 'after in at for time timestamp stamp date before duration utc epoch unix'],
  ['unit', 'ms msec msecs millis millisecond milliseconds sec secs seconds mins minutes hours hrs days'],
  ['plain', 'x rate limit limits limited quota throttling window request requests attempt call calls api'],
  ['plain', 'user app account client ip global unified burst daily hourly second minute hour day the is to'],
  ['plain', 'of on access expires expiry ttl rl back cool off down not earliest'],
]);
/** The longest word at each place, or a character that belongs to none. */
const wordsOfName = new RegExp(
  `${[...words.keys()].toSorted((a, b) => b.length - a.length).join('|')}|[^_]`,
  'g',
);
/** Several words that mean the end of a wait together. */
const ends =
  /next_?(?:retry|try|allowed|available)|limit_?(?:ttl|expir|next$)|back_off|cool_down|not_before|earliest/;
/** A longer name states nothing. Characters. */
const maxName = 64;

/**
 * What a name says of its value: a wait, of a retry or another one, with its unit (`''` = not stated), or only how a time is given.
 * `null`: it names something else. Reads `x-retry-after`, `retryAfterMs`, `retry_in_seconds`, `x-acme-ratelimit-reset`, `msBeforeNext`.
 */
function readName(
  name: string,
): { readonly states: 'retry' | 'other' | 'time'; readonly unit: string } | null {
  if (name.length > maxName) return null;
  const text = name
    .replaceAll(/(?<=[a-z])(?=[A-Z])|[-. ]/g, '_')
    .toLowerCase()
    .replace(/^.*?_(?=rate_?limit|limit_?reset|quota|throttl|retry_?(?:after|in|at|delay))/, '');
  // What is left of an amount is no time, and OpenAI's resets are when a bucket is full.
  if (/(?:limit|quota)_.*(?<!time_?|seconds_)(?:remaining|left)|reset_requests?$/.test(text)) return null;
  const found = text.replace(/_s$/, '_seconds').match(wordsOfName) ?? [];
  const kinds = new Set(found.map((word) => words.get(word)));
  if (kinds.has(undefined)) return null;
  const ownUnit = found.findLast((word) => words.get(word) === 'unit') ?? '';
  const unit = ownUnit === '' && text.endsWith('regain_access') ? 'minutes' : ownUnit;
  const isTimed = kinds.has('time') || kinds.has('unit');
  if (kinds.has('end') || ends.test(text) || (kinds.has('begin') && isTimed))
    return { states: /retry|again/.test(text) ? 'retry' : 'other', unit };
  return isTimed && !kinds.has('begin') && !kinds.has('plain') ? { states: 'time', unit } : null;
}

/** Milliseconds until the time that a value states whose name has this unit; `null`: it states none. */
const timeInUnit = (value: string, unit: string, at: ResponseTime): number | null =>
  (unit === '' || Number(value) >= firstInstant ? null : durationMs(value.replaceAll(',', '') + unit)) ??
  timeLeftMs(value, 'inferred', at);

// Fields

/**
 * Milliseconds to wait from the arrival of the response, an integer from 1 ms to 24 h; `null` = nothing usable was said.
 * First usable of `retry-after-ms` (> 0), `retry-after` (seconds, fractions allowed against RFC 9110 because the commerce API sends `2.0`;
 * an epoch sent by mistake; a duration; an instant against the response's own `Date`), and the longest of the fields whose names end like
 * these. `fields` has lower-case names and repeats joined by a comma; `nowMs` is the wall clock.
 */
export function retryAfterMs(fields: Fields, nowMs: number): number | null {
  const at: ResponseTime = { date: fields.get('date'), now: nowMs };
  const stated = (name: string, unit: string): number | null =>
    longestWaitMs(fields.get(name), (value) => timeInUnit(value, unit, at));
  return stated('retry-after-ms', 'ms') ?? stated('retry-after', '') ?? longestNamed(fields, at, 'retry');
}

/**
 * Milliseconds to wait by the fields of a refusal that are named after a reset or a wait, whosoever they are, the longest of them; `null`:
 * none states one. A reset beside which something is left refused nothing.
 */
export const namedWaitMs = (fields: Fields, at: ResponseTime): number | null =>
  longestNamed(fields, at, 'other');

function longestNamed(fields: Fields, at: ResponseTime, states: 'retry' | 'other'): number | null {
  let foundMs: number | null = null;
  for (const [name, value] of fields) {
    const named = readName(name);
    // What is left of the limit whose reset is stated.
    const left = [/resets?(?:-.*)?$/, /resets?/]
      .map((reset) => fields.get(name.replace(reset, 'remaining')))
      .filter((amount) => amount !== undefined && amount !== value)
      .map(Number);
    const isNamed = named?.states === states && !left.some((amount) => amount >= 1);
    // However the limit is called: X, `x-app-limit-24hour-reset`.
    const isSpent = states === 'other' && name.includes('reset') && left.some((amount) => amount < 1);
    if (isNamed || isSpent)
      foundMs = longer(
        foundMs,
        longestWaitMs(value, (single) => timeInUnit(single, named?.unit ?? '', at)),
      );
    else if (states === 'other' && named === null && /limit|quota|usage|throttl/.test(name))
      foundMs = longer(foundMs, insideWaitMs(value, at));
  }
  return foundMs;
}

/**
 * The draft of the IETF in a field of another name (`"tenant";r=0;t=1800`), `limit=10, remaining=0, reset=30`, and Meta's
 * `{"1":[{"estimated_time_to_regain_access":19}]}`.
 */
function insideWaitMs(value: string, at: ResponseTime): number | null {
  if (value.startsWith('{')) return parsedWaitMs(parseJson(value), at);
  const seconds = /\br=0 ?; ?t=(\d{1,9})\b/.exec(value)?.[1];
  if (seconds !== undefined) return usableWaitMs(timeLeftMs(seconds, 'seconds', at));
  const hasRoom = /(?:remaining|left|\br) ?[=:] ?[1-9]/i.test(value);
  return /[=:]/.test(value) && !hasRoom ? sentenceWaitMs(value, at) : null;
}

// Bodies

/** How much of a body is looked at: members, characters of one sentence and of all. */
const maxMembers = 300;
const maxSentence = 2_000;
const maxSaid = 20_000;

/**
 * Milliseconds until the time that the parsed body of a refusal names, 1 ms to a day; `null`: it names none. What is named after a retry
 * goes before other members, and those before sentences, which give the fraction of a second; of several the longest counts.
 */
export function parsedWaitMs(body: unknown, at: ResponseTime): number | null {
  const open: (readonly [string, unknown])[] = [['', body]];
  const foundMs: { retry: number | null; other: number | null } = { retry: null, other: null };
  let saidMs: number | null = null;
  let seen = 0;
  let saidLeft = maxSaid;
  for (const [parent, part] of open) {
    const members = typeof part === 'object' && part !== null ? Object.entries(part) : [['', part] as const];
    for (const [own, value] of members.slice(0, maxMembers - seen)) {
      seen += 1;
      // `retryDelay: { seconds: 30 }`, `retry_after: { value: 30, unit: "seconds" }`, `{ "$date": … }`
      const name = /^(?:value|amount|\$date|\d{1,3})$/.test(own) ? parent : own;
      if (typeof value === 'object') open.push([name, value]);
      if (typeof value === 'string') {
        saidMs = longer(saidMs, sentenceWaitMs(value.slice(0, Math.max(0, saidLeft)), at));
        saidLeft -= value.length;
      }
      if (typeof value !== 'string' && typeof value !== 'number') continue;
      const read = readName(name);
      const named = read?.states === 'time' ? readName(`${parent}_${name}`) : read;
      if (named === null || named.states === 'time') continue;
      const unit = named.unit || (stringAt(part, 'unit') ?? '');
      const waitMs = usableWaitMs(timeInUnit(String(value), unit, at));
      foundMs[named.states] = longer(foundMs[named.states], waitMs);
    }
  }
  const namedMs = foundMs.retry ?? foundMs.other;
  return namedMs === null ? saidMs : completedMs(namedMs, saidMs);
}

/**
 * A wait of whole seconds with the fraction that another statement of the same wait gives: Google cuts `retryDelay` off ("Please retry
 * in 58.934310785s" beside `58s`), and a call that leaves at the cut off time is refused again.
 */
export function completedMs(waitMs: number, otherMs: number | null): number {
  const isSame =
    otherMs !== null && waitMs % secondMs === 0 && Math.floor(otherMs / secondMs) * secondMs === waitMs;
  return isSame ? otherMs : waitMs;
}

/** Words that ask for another try, or name the end of a limit. */
const asksToRetry = new RegExp(
  [
    '\\b(?:re-?)?try|\\bagain|\\bwait|come back|cool ?down|back ?off|\\bpaus|\\bhold on|\\bsleep|\\beta\\b|time (?:remaining|left)',
    '(?:remaining|left) time|\\bresets?\\b|\\bresum|\\brenew|refill|replenish|restored|\\bun(?:lock|block)|\\blifted',
    '(?:block|bann|lock|suspend|throttl|tim)ed\\b[^\\d]{0,20} for|more \\w+ for|only \\w+ \\w+ after|available\\b[^\\d]{0,20} (?:in|after)|(?:next|another) \\w+\\b[^\\d]{0,20} (?:in|after)',
    'erneut|versuch|warten|réessa|attend|de nuevo|espere|novamente|aguard|riprov|повтор|подожд|等待|重试|再|待ち|다시|[后後후뒤]',
  ].join('|'),
  'i',
);
/** Between a word that asks and its time there are no more characters. */
const maxBetween = 48;
/** What stands before a time that is none to wait: "5 per 60 seconds", "at 12:00:30". */
const countsWithin =
  /(?:\b(?:per|every|each|last|past|previous|than|took|time(?:d )?-?out(?: after)?|at|until)|[/每]) ?(?:the )?$/i;
/** What stands around a time that a word asks for behind it: "in 30 seconds you can try again", "30 seconds until the reset". */
const standsBeforeAsked = /(?:^|\b(?:in|after)) ?$/i;
const standsBehindTime = /^ ?(?:until|before|from now|remaining|left|[之以]?[后後후뒤]|お待ち)/i;
/** Vimeo's "an hour or so" is no time: a field beside it states the reset. */
const durations = new RegExp(
  `${durationInText}|(?<!half )\\b(?:an?|one) (?:second|minute|hour)\\b(?! or so)`,
  'gi',
);
const instants = new RegExp(instantInText, 'i');
/** A bare number is seconds in a few forms only. Telegram: "Too Many Requests: retry after 12", "FLOOD_WAIT_12". */
const bareSeconds =
  /(?:\bretry[- _]?after|\b(?:re)?try(?: again)? (?:in|after)|_wait_|\buntil(?= \d{13})):? ?(\d{1,13}(?:\.\d{1,9})?)(?![\d.]*\d|\s*[a-z%]|[-:/])/i;
/** A member of a text in another form: an element or attribute of XML, a form, a document within a text, "Wait time: 30 seconds". */
const namedMember =
  /(?<![\w-])([a-z][\w -]{1,48})["'\\]{0,2} ?[=:>] ?["'\\]{0,2}((?:[^"'<>&,;\\}\n]|,(?=\d{3}\b)){1,64})/gi;
/** "30 to 60 seconds": the first number of a range. */
const rangeStart = new RegExp(
  `(?<![\\d.])\\d{1,9}(?:\\.\\d{1,9})? ?(?:-|–|to|or) ?(?=${durationInText})`,
  'gi',
);

/** Milliseconds until the time that a text names, 1 ms to a day; `null`: it names none. */
export function sentenceWaitMs(text: string, at: ResponseTime): number | null {
  const read = text.slice(0, maxSentence);
  if (!/\d|\b(?:an?|one) /i.test(read)) return null;
  for (const [, name = '', value = ''] of read.matchAll(namedMember)) {
    const stated = readName(name);
    if (stated === null || stated.states === 'time') continue;
    const waitMs = usableWaitMs(timeInUnit(value.trim(), stated.unit, at));
    if (waitMs !== null) return waitMs;
  }
  const plain = read
    .replaceAll(rangeStart, '')
    .replaceAll('(s)', 's')
    .replaceAll(/(["'`])(\d{1,9})\1/g, '$2')
    .replaceAll(/(?<=\d) more(?= [smh])/g, '');
  for (const clause of plain.split(/[.;!?](?=\s|$)|[。！？\n]/)) {
    const waitMs = asksToRetry.test(clause) ? clauseWaitMs(clause, at) : null;
    if (waitMs !== null) return waitMs;
  }
  const seconds = bareSeconds.exec(read)?.[1];
  return seconds === undefined ? null : usableWaitMs(timeLeftMs(seconds, 'inferred', at));
}

/** Of a part of a sentence that asks for another try. */
function clauseWaitMs(clause: string, at: ResponseTime): number | null {
  const instant = instants.exec(clause)?.[0];
  if (instant !== undefined) return usableWaitMs(timeLeftMs(instant.trim(), 'inferred', at));
  for (const { 0: duration, index } of clause.matchAll(durations)) {
    const before = clause.slice(0, index);
    // A number before it is counted in this time, unless a word between them asks: "5 requests in 60 seconds".
    const since = before.split(/\d|\b(?:or|but|if)\b/i).at(-1) ?? '';
    const after = clause.slice(index + duration.length);
    const isAskedBehind =
      asksToRetry.test(after) &&
      (standsBehindTime.test(after) || (standsBeforeAsked.test(since) && since === before));
    if (countsWithin.test(since) || !(asksToRetry.test(since.slice(-maxBetween)) || isAskedBehind)) continue;
    return usableWaitMs(durationMs(duration.trim().replace(/^(?:an?|one) /i, '1 ')));
  }
  return null;
}
