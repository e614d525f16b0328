/**
 * What a response says about when to try again: in `Retry-After`, `retry-after-ms` and the fields named after them, as real servers send
 * them; in a member of a refusal's body (`parameters.retry_after` of Telegram, `retryDelay` of Google); else in a sentence of it ("Please
 * try again in 20s"). Resets of limits are none of these.
 *
 * Invariants: never earlier than stated (rounded up; of several values the longest), and never 0: clients that took garbage for 0 hammer
 * their upstream at once. Never throws; linear, and bounded whatever the body; a sentence that states how a limit counts ("5 requests
 * per 60 seconds") is no wait.
 */
import { meaningOfWords } from '../words.policy.ts';
import { parseJson } from './feedback/json.policy.ts';
import {
  durationInText,
  durationMs,
  instantInText,
  singleValues,
  timeLeftMs,
  type ResponseTime,
} from './stated-time.policy.ts';

/** Longest wait believed, the longest window any known limiter has: 24 h in milliseconds. */
export const maxRetryAfterMs = 86_400_000;

const maxField = 256;

type Fields = ReadonlyMap<string, string>;

// Names

/**
 * Words of names. `end`: the end of a wait · `begin`: it is one beside a time · `time` and `unit`: how a time is given · `plain`: they change
 * nothing of it. A name with any other word says something else.
 */
type WordOfName = 'end' | 'begin' | 'time' | 'unit' | 'plain';
const words = meaningOfWords<WordOfName>([
  ['end', 'reset resets wait waiting backoff cooldown delay regain replenishment renew renews refill'],
  ['end', 'refills resume resumes unblock unblocks unlock unlocks until'],
  ['begin', 'retry try again next available allowed remaining left throttle throttled ban banned'],
  ['begin', 'block blocked lock locked suspended'],
  ['time', 'after in at for time timestamp stamp date before duration'],
  ['unit', 'ms msec msecs millis millisecond milliseconds sec secs seconds mins minutes hours hrs days'],
  ['plain', 'x rate limit limits limited quota throttling window request requests attempt call calls api'],
  ['plain', 'user app account client ip global unified burst daily hourly second minute hour day the is to'],
  ['plain', 'of on estimated access expires expiry ttl rl back cool off down'],
]);
const inOrder = [...words.keys()].toSorted((a, b) => b.length - a.length);
/** The longest word at each place, or a character that belongs to none. */
const wordsOfName = new RegExp(`${inOrder.join('|')}|[^_]`, 'g');
/** Several words that mean the end of a wait together. */
const ends = /next_?(?:retry|try|allowed|available)|limit_?(?:ttl|expir)|back_off|cool_down/;

/**
 * What a name says of its value: a wait, of a retry or another one, with its unit (`''` = not stated), or only how a time is given.
 * `null`: it names something else.
 */
type Named = { readonly states: 'retry' | 'other' | 'time'; readonly unit: string } | null;

/** Reads `x-retry-after`, `retryAfterMs`, `retry_in_seconds`, `x-acme-ratelimit-reset`, `msBeforeNext`, `blocked_until`. */
function readName(name: string): Named {
  if (name.length > maxName) return null;
  const text = name
    .replaceAll(/(?<=[a-z])(?=[A-Z])|[-. ]/g, '_')
    .toLowerCase()
    .replace(/^.*?_(?=rate_?limit|quota|throttl|retry_?(?:after|in|at|delay))/, '');
  // What is left of an amount is no time, and OpenAI's resets are when a bucket is full.
  if (/(?:limit|quota)_.*(?:remaining|left)|reset_requests?$/.test(text)) return null;
  let unit = text.endsWith('regain_access') ? 'minutes' : '';
  const found = new Set<WordOfName>();
  for (const word of text.replace(/_s$/, '_seconds').match(wordsOfName) ?? []) {
    const kind = words.get(word);
    if (kind === undefined) return null;
    if (kind === 'unit') unit = word;
    found.add(kind);
  }
  const isTimed = found.has('time') || found.has('unit');
  if (found.has('end') || ends.test(text) || (found.has('begin') && isTimed))
    return { states: /retry|again/.test(text) ? 'retry' : 'other', unit };
  return isTimed && !found.has('begin') && !found.has('plain') ? { states: 'time', unit } : null;
}

/** A longer name states nothing. Characters. */
const maxName = 64;

/** A bare number from here on is an instant, whatever unit its name has. */
const firstInstant = 1e9;

/** Milliseconds until the time that a value states whose name has this unit; `null`: it states none. */
const timeInUnit = (value: string, unit: string, at: ResponseTime): number | null =>
  (unit === '' || Number(value) >= firstInstant ? null : durationMs(value.replaceAll(',', '') + unit)) ??
  timeLeftMs(value, 'inferred', at);

/**
 * Milliseconds to wait from the arrival of the response, integer in 1…24 h; `null` = nothing usable was said.
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
    const isOne = named?.states === states && !hasRoom(name, value, fields);
    // Meta: `x-business-use-case-usage: {"1":[{"estimated_time_to_regain_access":19}]}`
    const inside = states === 'other' && value.startsWith('{') ? parsedWaitMs(parseJson(value), at) : null;
    const waitMs = isOne ? longestWaitMs(value, (single) => timeInUnit(single, named.unit, at)) : inside;
    foundMs = longer(foundMs, waitMs);
  }
  return foundMs;
}

/** True for the reset of a limit of which something is left. */
const hasRoom = (name: string, value: string, fields: Fields): boolean =>
  [/resets?(?:-.*)?$/, /resets?/]
    .map((reset) => fields.get(name.replace(reset, 'remaining')))
    .some((left) => left !== undefined && left !== value && Number(left) >= 1);

/** The longest wait that the values of a field state; one of a day and more counts only where there is no other. */
export function longestWaitMs(
  value: string | undefined,
  read: (single: string) => number | null,
): number | null {
  if (value === undefined || value.length > maxField) return null;
  const waits = singleValues(value)
    .map((single) => usableWaitMs(read(single)))
    .filter((waitMs) => waitMs !== null);
  const believed = waits.filter((waitMs) => waitMs < maxRetryAfterMs);
  return waits.length === 0 ? null : Math.max(...(believed.length > 0 ? believed : waits));
}

/** A stated time as a wait: rounded up, a day at most; `null` for one that is over. */
function usableWaitMs(waitMs: number | null): number | null {
  if (waitMs === null || !Number.isFinite(waitMs) || waitMs <= 0) return null;
  return Math.min(Math.ceil(waitMs), maxRetryAfterMs);
}

// Bodies

/** How much of a body is looked at. */
const maxMembers = 300;
const maxSentence = 2_000;

/**
 * Milliseconds until the time that the parsed body of a refusal names, 1 ms to a day; `null`: it names none. What is named after a retry
 * goes before other members, and those before sentences; of several the longest counts.
 */
export function parsedWaitMs(body: unknown, at: ResponseTime): number | null {
  const open: (readonly [string, unknown])[] = [['', body]];
  let retryMs: number | null = null;
  let otherMs: number | null = null;
  let saidMs: number | null = null;
  let seen = 0;
  for (const [parent, part] of open) {
    const members = typeof part === 'object' && part !== null ? Object.entries(part) : [['', part] as const];
    for (const [name, value] of members.slice(0, maxMembers - seen)) {
      seen += 1;
      if (typeof value === 'object') open.push([name, value]);
      if (typeof value === 'string') saidMs = longer(saidMs, sentenceWaitMs(value, at));
      if (typeof value !== 'string' && typeof value !== 'number') continue;
      // `retryDelay: { seconds: 30 }`
      const own = readName(name);
      const named = own?.states === 'time' ? readName(`${parent}_${name}`) : own;
      if (named === null || named.states === 'time') continue;
      const waitMs = usableWaitMs(timeInUnit(String(value), named.unit, at));
      if (named.states === 'retry') retryMs = longer(retryMs, waitMs);
      else otherMs = longer(otherMs, waitMs);
    }
  }
  return retryMs ?? otherMs ?? saidMs;
}

const longer = (one: number | null, other: number | null): number | null =>
  one === null || other === null ? (one ?? other) : Math.max(one, other);

const filler =
  '(?:about |approximately |around |another |at least |less than |up to |the next |no less than |~ ?)?';
const amount = `(${durationInText}|(?:an?|one) (?:second|minute|hour)\\b)`;
/** Words that ask for another try, and the time until it. */
const asked = new RegExp(
  `\\b(?:(?:try|retry|retrying|again|wait|come back|cool ?down|back ?off|(?:wait(?:ing)?|remaining|left) ?time|time (?:remaining|left))\\b(?:[^.\\d:]{0,30}?\\b(?:in|after|for|of|within):?|:)? ?|(?:available|resets?|resumes?|renews?|renewed|refills?|refilled|replenished|restored|unlocks?|unlocked|unblocked|lifted|(?:next|another) \\w+)\\b[^.\\d:]{0,20}?\\b(?:in|after) |(?:blocked|banned|locked|suspended|more \\w+)\\b[^.\\d:]{0,20}?\\bfor )${filler}${amount}`,
  'i',
);
/** An instant behind such a word. */
const named = new RegExp(
  `\\b(?:try|retry|again|wait|available|resets?|resumes?|renews?|until)\\b[^.\\d:]{0,30}(${instantInText})`,
  'i',
);
/** A bare number is seconds in a few forms only. Telegram: "Too Many Requests: retry after 12", "FLOOD_WAIT_12". */
const bare =
  /(?:\bretry[- _]?after|\b(?:re)?try(?: again)? (?:in|after)|_wait_):? ?(\d{1,12}(?:\.\d{1,9})?)(?![\d.]*\d|\s*[a-z%]|[-:/])/i;
/** A member of a text in another form: an element or attribute of XML, a form, a document within a text. */
const member =
  /(?<![\w-])([\w-]{0,32}retry[\w-]{0,32})["'\\]{0,2} ?[=:>] ?["'\\]{0,2}([^"'<>&;\\}\n]{1,64})/gi;
/** "30 to 60 seconds": the first number of a range. */
const rangeStart = new RegExp(`\\d+(?:\\.\\d+)? ?(?:-|–|to|or) ?(?=${durationInText})`, 'gi');
/** Chinese, Japanese and Korean: "请在 30 秒后重试". */
const eastern = /(\d{1,6}(?:\.\d{1,9})?) ?(毫秒|秒|초|分钟|分|분|小时|時間|시간) ?[钟之以]?[后後후]/;
const easternUnits = meaningOfWords([
  ['ms', '毫秒'],
  ['s', '秒 초'],
  ['h', '小时 時間 시간'],
]);

/** The same for a text that is no JSON. */
export function sentenceWaitMs(text: string, at: ResponseTime): number | null {
  const read = text.slice(0, maxSentence);
  if (!/\d|\b(?:an?|one) /.test(read)) return null;
  for (const [, name = '', value = ''] of /retry/i.test(read) ? read.matchAll(member) : []) {
    const unit = readName(name)?.unit;
    const waitMs = unit === undefined ? null : usableWaitMs(timeInUnit(value.trim(), unit, at));
    if (waitMs !== null) return waitMs;
  }
  const sentence = read.replaceAll(rangeStart, '').replaceAll(/(?<=\d) more(?= [smh])/g, '');
  const duration = asked
    .exec(sentence)?.[1]
    ?.trim()
    .replace(/^(?:an?|one) /i, '1 ');
  if (duration !== undefined) return usableWaitMs(durationMs(duration));
  const instant = named.exec(sentence)?.[1] ?? bare.exec(sentence)?.[1];
  if (instant !== undefined) return usableWaitMs(timeLeftMs(instant, 'inferred', at));
  const [, digits, unit = ''] = eastern.exec(sentence) ?? [];
  return digits === undefined ? null : usableWaitMs(durationMs(`${digits}${easternUnits.get(unit) ?? 'm'}`));
}
