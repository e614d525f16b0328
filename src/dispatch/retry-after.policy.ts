/**
 * What a response says about when to try again: in `Retry-After`, `retry-after-ms` and the fields named after them, as real servers send
 * them; in a member of a refusal's body (`parameters.retry_after` of Telegram, `retryDelay` of Google); else in a sentence of it ("Please
 * try again in 20s"). Resets of limits are none of these.
 *
 * Invariants: never earlier than stated (rounded up; of several values the longest), and never 0: clients that took garbage for 0 hammer
 * their upstream at once. Never throws; linear, and bounded whatever the body; a sentence that states how a limit counts ("5 requests
 * per 60 seconds") is no wait.
 */
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

/** Names of what states a wait, in lower case without `-` and `_`: `x-retry-after`, `retryAfterMs`, `retry_in_seconds`. */
const waitName = /(?:retry|tryagain)(?:after|in|at|delay)((?:m(?:illi)?|min(?:ute)?)?s(?:ec(?:ond)?s?)?)?$/;

/** A bare number from here on is an instant, whatever unit its name has. */
const firstInstant = 1e9;

/**
 * Milliseconds until the time that a field or member states whose name, as `pattern` has it, is one of a wait and may end with its unit;
 * `null`: it states none.
 */
function namedTimeMs(name: string, value: string, at: ResponseTime, pattern = waitName): number | null {
  const found = pattern.exec(
    name
      .toLowerCase()
      .replaceAll(/[-_]/g, '')
      .replace(/^(seconds|milliseconds)(?=until)(.*)/, '$2$1'),
  );
  if (found === null) return null;
  const isInUnit = found[1] !== undefined && !(Number(value) >= firstInstant);
  return (isInUnit ? durationMs(value + found[1]) : null) ?? timeLeftMs(value, 'inferred', at);
}

/**
 * Milliseconds to wait from the arrival of the response, integer in 1…24 h; `null` = nothing usable was said.
 * First usable of `retry-after-ms` (> 0), `retry-after` (seconds, fractions allowed against RFC 9110 because the commerce API sends `2.0`;
 * an epoch sent by mistake; a duration; an instant against the response's own `Date`), and the longest of the fields whose names end like
 * these. `fields` has lower-case names and repeats joined by a comma; `nowMs` is the wall clock.
 */
export function retryAfterMs(fields: ReadonlyMap<string, string>, nowMs: number): number | null {
  const at: ResponseTime = { date: fields.get('date'), now: nowMs };
  return (
    waitIn(fields, 'retry-after-ms', at) ?? waitIn(fields, 'retry-after', at) ?? neighbouringMs(fields, at)
  );
}

const waitIn = (fields: ReadonlyMap<string, string>, name: string, at: ResponseTime): number | null =>
  longestWaitMs(fields.get(name), (value) => namedTimeMs(name, value, at));

/**
 * Milliseconds to wait by the fields of a refusal that are named after a reset or a wait, whosoever they are, the longest of them; `null`:
 * none states one. A reset beside which something is left refused nothing.
 */
export function namedWaitMs(fields: ReadonlyMap<string, string>, at: ResponseTime): number | null {
  let foundMs: number | null = null;
  for (const [name, value] of fields) {
    if (!/reset|wait|backoff|cooldown/.test(name)) continue;
    const left = fields.get(name.replace(/resets?(?:-.*)?$/, 'remaining'));
    if (left !== undefined && left !== value && Number(left) >= 1) continue;
    const vendor = name.replace(/^.*?-(?=(?:rate-?limit|quota)-)/, '');
    const waitMs = longestWaitMs(value, (single) => namedTimeMs(vendor, single, at, otherName));
    if (waitMs !== null) foundMs = Math.max(foundMs ?? 0, waitMs);
  }
  return foundMs;
}

function neighbouringMs(fields: ReadonlyMap<string, string>, at: ResponseTime): number | null {
  let foundMs: number | null = null;
  for (const name of fields.keys()) {
    const waitMs = name.includes('retry') ? waitIn(fields, name, at) : null;
    if (waitMs !== null) foundMs = Math.max(foundMs ?? 0, waitMs);
  }
  return foundMs;
}

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

/** Names that state a wait within a refusal, where nothing is named after a retry. */
const otherName =
  /^(?:x?(?:rate)?(?:limit|quota)?resets?(?:in|after|at|time)?|x?(?:rate)?(?:limit)?(?:timeto)?wait(?:for|time|until)?|x?backoff|cooldown|(?:next)?(?:request|attempt|available|allowed)+(?:in|after|at)|(?:blocked|banned|limited)(?:for|until)|(?:time)?until(?:retry|reset))((?:m(?:illi)?)?s(?:ec(?:ond)?s?)?)?$/;

/** Milliseconds until the time that the parsed body of a refusal names, 1 ms to a day; `null`: it names none. */
export function parsedWaitMs(body: unknown, at: ResponseTime): number | null {
  const { retryMs, otherMs, sentences } = membersOf(body, at);
  let waitMs = retryMs ?? otherMs;
  for (const sentence of sentences) waitMs ??= sentenceWaitMs(sentence, at);
  return waitMs;
}

interface Members {
  /** The first wait in a member named after a retry, milliseconds. */
  readonly retryMs: number | null;
  /** The first in a member of another name. */
  readonly otherMs: number | null;
  readonly sentences: readonly string[];
}

/** Outer members come before inner ones. */
function membersOf(body: unknown, at: ResponseTime): Members {
  const open: (readonly [string, unknown])[] = [['', body]];
  const sentences: string[] = [];
  let retryMs: number | null = null;
  let otherMs: number | null = null;
  let seen = 0;
  for (const [parent, part] of open) {
    const members = typeof part === 'object' && part !== null ? Object.entries(part) : [['', part] as const];
    for (const [name, value] of members) {
      if (++seen > maxMembers) return { retryMs, otherMs, sentences };
      if (typeof value === 'object') open.push([name, value]);
      if (typeof value === 'string') sentences.push(value);
      if (typeof value !== 'string' && typeof value !== 'number') continue;
      // `retryDelay: { seconds: 30 }`
      retryMs ??= usableWaitMs(namedTimeMs(`${parent}_${name}`, String(value), at));
      otherMs ??= usableWaitMs(namedTimeMs(name, String(value), at, otherName));
    }
  }
  return { retryMs, otherMs, sentences };
}

const filler = '(?:about |approximately |around |another |at least |less than |up to |~ ?)?';
const amount = `(${durationInText}|(?:an?|one) (?:second|minute|hour)\\b)`;
/** Words that ask for another try, and the time until it. */
const asked = new RegExp(
  `\\b(?:(?:try|retry|retrying|again|wait|back ?off)\\b(?:[^.\\d:]{0,30}?\\b(?:in|after|for|of|within):?|:)? ?|(?:available|resets?|resumes?|unblocked|lifted|blocked|banned|(?:next|another) \\w+)\\b[^.\\d:]{0,20}?\\b(?:in|after|for) )${filler}${amount}`,
  'i',
);
/** An instant behind such a word. */
const named = new RegExp(
  `\\b(?:try|retry|again|wait|available|resets?|resumes?|until)\\b[^.\\d:]{0,30}(${instantInText})`,
  'i',
);
/** A bare number is seconds in one form only. Telegram: "Too Many Requests: retry after 12". */
const bare = /\bretry[- _]?after\\?"?:? ?"?(\d{1,12}(?:\.\d{1,9})?)(?![\d.]*\d|\s*[a-z%])/i;
/** Chinese and Japanese: "请在 30 秒后重试". */
const eastern = /(\d{1,6}(?:\.\d{1,9})?) ?(毫秒|秒|分钟|分|小时|時間)[钟之以]?[后後]/;
const easternUnits: Readonly<Record<string, string>> = { 毫秒: 'ms', 秒: 's', 分钟: 'm', 分: 'm' };

/** The same for a text that is no JSON. */
export function sentenceWaitMs(text: string, at: ResponseTime): number | null {
  const sentence = text.slice(0, maxSentence).replaceAll(/(?<=\d) more(?= [smh])/g, '');
  if (!/\d|\b(?:an?|one) /.test(sentence)) return null;
  const duration = asked
    .exec(sentence)?.[1]
    ?.trim()
    .replace(/^(?:an?|one) /i, '1 ');
  if (duration !== undefined) return usableWaitMs(durationMs(duration));
  const instant = named.exec(sentence)?.[1] ?? bare.exec(sentence)?.[1];
  if (instant !== undefined) return usableWaitMs(timeLeftMs(instant, 'inferred', at));
  const [, digits, unit = ''] = eastern.exec(sentence) ?? [];
  return digits === undefined ? null : usableWaitMs(durationMs(`${digits}${easternUnits[unit] ?? 'h'}`));
}
