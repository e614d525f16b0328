/**
 * The wait that the body of a refusal states: in a member (`parameters.retry_after` of Telegram, `retryDelay` of Google), else in a
 * sentence ("Please try again in 20s").
 *
 * Owns: which members and which words state a wait. Does not own: the spelling of a time (`stated-time.policy.ts`). Invariants: never
 * throws; linear, and bounded whatever the body; a sentence that states how a limit counts ("5 requests per 60 seconds") is no wait.
 */
import {
  durationInText,
  durationMs,
  instantInText,
  timeLeftMs,
  type ResponseTime,
} from '../stated-time.policy.ts';
import { namedTimeMs, usableWaitMs } from '../retry-after.policy.ts';

/** How much of a body is looked at. */
const maxMembers = 300;
const maxSentence = 2_000;

/** Names that state a wait within a refusal, where nothing is named after a retry. */
const otherName =
  /^(?:resets?(?:in|after|at)|wait(?:for|time|seconds)?|backoff|cooldown)((?:m(?:illi)?)?s(?:ec(?:ond)?s?)?)?$/;

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
  const open: unknown[] = [body];
  const sentences: string[] = [];
  let retryMs: number | null = null;
  let otherMs: number | null = null;
  let seen = 0;
  for (const part of open) {
    const members = typeof part === 'object' && part !== null ? Object.entries(part) : [['', part] as const];
    for (const [name, value] of members) {
      if (++seen > maxMembers) return { retryMs, otherMs, sentences };
      if (typeof value === 'object') open.push(value);
      if (typeof value === 'string') sentences.push(value);
      if (typeof value !== 'string' && typeof value !== 'number') continue;
      retryMs ??= usableWaitMs(namedTimeMs(name, String(value), at));
      otherMs ??= usableWaitMs(namedTimeMs(name, String(value), at, otherName));
    }
  }
  return { retryMs, otherMs, sentences };
}

const filler = '(?:about |approximately |around |another |at least |less than |up to |~ ?)?';
const amount = `(${durationInText}|an? (?:second|minute|hour)\\b)`;
/** Words that ask for another try, and the time until it. */
const asked = new RegExp(
  `\\b(?:(?:try|retry|retrying|again|wait|back ?off)\\b(?:[^.\\d:]{0,30}?\\b(?:in|after|for|of|within):?|:)? ?|(?:available|resets?|resumes?|unblocked|lifted)\\b[^.\\d:]{0,20}?\\b(?:in|after) )${filler}${amount}`,
  'i',
);
/** An instant behind such a word. */
const named = new RegExp(
  `\\b(?:try|retry|again|wait|available|resets?|resumes?|until)\\b[^.\\d:]{0,30}(${instantInText})`,
  'i',
);
/** A bare number is seconds in one form only. Telegram: "Too Many Requests: retry after 12". */
const bare = /\bretry[- _]?after:? "?(\d{1,12}(?:\.\d{1,9})?)(?![\d.]*\d|\s*[a-z%])/i;
/** Chinese and Japanese: "请在 30 秒后重试". */
const eastern = /(\d{1,6}(?:\.\d{1,9})?) ?(毫秒|秒|分钟|分|小时|時間)[钟之以]?[后後]/;
const easternUnits: Readonly<Record<string, string>> = { 毫秒: 'ms', 秒: 's', 分钟: 'm', 分: 'm' };

/** The same for a text that is no JSON. */
export function sentenceWaitMs(text: string, at: ResponseTime): number | null {
  const sentence = text.slice(0, maxSentence);
  if (!/\d|\ban? /.test(sentence)) return null;
  const duration = asked.exec(sentence)?.[1]?.trim().replace(/^an? /i, '1 ');
  if (duration !== undefined) return usableWaitMs(durationMs(duration));
  const instant = named.exec(sentence)?.[1] ?? bare.exec(sentence)?.[1];
  if (instant !== undefined) return usableWaitMs(timeLeftMs(instant, 'inferred', at));
  const [, digits, unit = ''] = eastern.exec(sentence) ?? [];
  return digits === undefined ? null : usableWaitMs(durationMs(`${digits}${easternUnits[unit] ?? 'h'}`));
}
