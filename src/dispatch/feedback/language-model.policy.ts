/**
 * What a language-model response teaches, in the dialects of OpenAI, Azure, Groq, Anthropic, Gemini, Mistral, Cerebras
 * and OpenRouter, and in the fields that no provider owns.
 *
 * Owns: joining fields, error body and message into one `Feedback`. Does not own: reading each of the three, and
 * whether anything is sent again. Invariant: "remaining is 0" is never read as a throttle (`remaining` is not 0 on a
 * real 429), and the wait is never earlier than the most exact thing that the response states.
 */
import type { Feedback, MeterName, MeterReport, QuotaScope, Throttle, TokenUsage } from '../../call.ts';
import { wordsOf } from '../../words.policy.ts';
import { parsedWaitMs } from '../stated-time.policy.ts';
import {
  given,
  isRecord,
  lastObject,
  parseJson,
  stringAt,
  countAt,
  objectAt,
  recordAt,
  type JsonRecord,
} from './json.policy.ts';
import {
  exhaustedForMs,
  modelReadings,
  renewalTrapMs,
  reportsOf,
  unownedReadings,
  type Fields,
  type Reading,
  believable,
  nothingLearned,
  type ResponseReader,
} from './response.policy.ts';
import {
  isErrorText,
  mayBeRate,
  refusedIn,
  statusInside,
  type LimiterMessage,
  type Refused,
  type Verdict,
} from './refusal.policy.ts';

export function learnFromModel(response: ResponseReader): Feedback {
  const { fields, body, at } = response;
  // A success without the word is not parsed.
  const mayHoldError = response.status < 400 && body !== null && isErrorText(body);
  const errorStatus = mayHoldError ? statusInside(response.json()) : null;
  const status = errorStatus ?? response.status;
  const refused = status >= 400 ? refusedIn(response.json(), status, body ?? '') : null;
  const own = modelReadings(fields, at);
  const readings = own.length > 0 ? own : unownedReadings(refused?.error?.fields ?? fields, at);
  const reports = reportsOf(readings);
  if (refused === null) {
    const usage = (body === null ? null : tokenUsage(withUsageIn({}, body))) ?? undefined;
    return { meters: reports, throttle: null, ...given({ usage, scope: scopeOf({}, fields) }) };
  }
  const { message, error } = refused;
  const throttle = throttleOf(response, status, readings, refused, reports);
  return {
    meters: throttle === null ? reports : withMessage(reports, message),
    throttle,
    ...given({
      errorStatus: errorStatus ?? undefined,
      // What clients may branch on, where a breaker will answer in the provider's stead.
      said: throttle?.kind === 'permanent' ? (error?.said ?? undefined) : undefined,
      requestedTokens: requestedTokens(message),
      scope: scopeOf(message.scope, fields),
    }),
  };
}

function throttleOf(
  response: ResponseReader,
  status: number,
  readings: readonly Reading[],
  refused: Refused,
  reports: readonly MeterReport[],
): Throttle | null {
  const { fields } = response;
  const [statedMs, bodyMs] = [response.statedMs(), response.bodyMs()];
  const toldMs = statedMs ?? bodyMs;
  let { verdict } = refused;
  // Mistral, to a key without an allowance: no minute brings one.
  const hasNone = readings.some(({ meter, limit }) => meter === 'requests' && limit === 0);
  if (verdict === 'rate' && statedMs === null && hasNone) verdict = 'daily';
  // A 402 that states a time asks for a wait, and condemns nobody. So does what others say of a quota of minutes.
  const mayWait = status === 402 || mayBeRate(refused);
  if ((verdict === 'quota' || verdict === 'unclear') && mayWait && toldMs !== null) verdict = 'rate';
  if (verdict === null) return null;
  if (verdict !== 'rate') return asThrottle(verdict, verdict === 'quota' ? toldMs : statedMs, null);
  // First `retry-after-ms`, `retry-after`, the body, the end of an exhausted window. In Azure's trap at least what the body states, or
  // else the renewal period.
  const trapMs = renewalTrapMs(readings);
  const waitMs =
    trapMs === null ? (toldMs ?? exhaustedForMs(readings)) : Math.max(statedMs ?? 0, bodyMs ?? trapMs);
  return asThrottle('rate', waitMs, meterAtFault(fields, refused, reports));
}

/** The throttle that a verdict means to the rest of the gateway. */
function asThrottle(verdict: Verdict, waitMs: number | null, meter: MeterName | null): Throttle {
  if (verdict === 'rate') return { kind: 'rate', waitMs, meter };
  if (verdict === 'overload') return { kind: 'overload', waitMs };
  // Gemini states a `retryDelay` beside a spent day, which is not the day's end.
  return { kind: 'permanent', reason: verdict, waitMs: verdict === 'daily' ? null : waitMs };
}

function meterAtFault(
  fields: Fields,
  { message, error }: Refused,
  reports: readonly MeterReport[],
): MeterName | null {
  if (message.meter !== null) return message.meter;
  const type = (fields.get('x-ratelimit-type') ?? error?.type ?? '').toLowerCase();
  if (type !== 'tokens' && type !== 'requests') return null;
  // `requests` stands for the minute and for the day: believe it only as far as the fields name the window.
  const candidates = reports.filter(({ meter }) => meter === type || meter === `${type}_day`);
  return candidates.length === 1 ? (candidates[0]?.meter ?? null) : type;
}

/**
 * Adds what the sentence says about its meter where the fields are silent or speak of a wider limit: a project's own
 * limit is named in the text only. `Used` is rounded up, so the truth is within one unit below.
 */
function withMessage(reports: readonly MeterReport[], message: LimiterMessage): readonly MeterReport[] {
  const { meter, limit, used, windowMs } = message;
  if (meter === null || limit === null || limit <= 0) return reports;
  const known = reports.find((report) => report.meter === meter);
  if (known !== undefined && known.limit <= limit) return reports;
  const level = used === null ? null : { lowest: Math.max(0, used - 1), highest: used };
  return [...reports.filter((report) => report !== known), { meter, limit, windowMs, level }];
}

/** Tokens that the limiter counted for a refused call. */
const requestedTokens = ({ meter, requested }: LimiterMessage): number | undefined =>
  meter === 'tokens_day' || meter?.endsWith('tokens') === true ? (requested ?? undefined) : undefined;

function scopeOf(stated: QuotaScope, fields: Fields): QuotaScope | undefined {
  const organization = fields.get('openai-organization') ?? stated.organization;
  const project = fields.get('openai-project') ?? stated.project;
  const { family } = stated;
  if (organization === undefined && project === undefined && family === undefined) return undefined;
  return given({ organization, project, family });
}

// One event inside a 200 event stream, which may turn into a refusal after its head said success

/** The data of an event as an error where only the event's name says that it is one. */
export function namedError(data: string, event: string | undefined): string {
  if (event !== 'error' || data.includes('"error"')) return data;
  return isRecord(parseJson(data)) ? `{"error":${data}}` : JSON.stringify({ error: data });
}

const noFields: Fields = new Map();

/**
 * Learns from the data of one event (JSON; `data:` prefixes are tolerated). Anything else teaches nothing. `nowMs`: the wall clock, for
 * an instant in it.
 */
export function learnFromStreamEvent(text: string, nowMs: number): Feedback {
  if (!isErrorText(text)) return nothingLearned;
  // An event may be cut, because the response around the error is long.
  const body = parseJson(text.replace(/^data: ?/gm, '')) ?? { error: lastObject(text, 'error', () => true) };
  const errorStatus = statusInside(body);
  if (errorStatus === null) return nothingLearned;
  const { message, verdict } = refusedIn(body, errorStatus);
  if (verdict === null) return { ...nothingLearned, errorStatus };
  const waitMs = verdict === 'rate' ? parsedWaitMs(body, { date: null, now: nowMs }) : null;
  return believable({
    meters: withMessage([], message),
    throttle: asThrottle(verdict, waitMs, message.meter),
    errorStatus,
    ...given({ requestedTokens: requestedTokens(message), scope: scopeOf(message.scope, noFields) }),
  });
}

/** Events that only say that a response has begun. Whatever is not known to come before content is content. */
const beginnings = new Set(
  wordsOf('message_start ping response.created response.queued response.in_progress keepalive'),
);

/** True for an event of a stream (its `data`) that is content. */
export function isContent(data: string): boolean {
  const body = parseJson(data);
  if (!isRecord(body)) return true;
  const type = stringAt(body, 'type');
  if (type !== null) return !beginnings.has(type);
  const { choices } = body;
  return !Array.isArray(choices) || choices.some(saysSomething);
}

/** Chat begins with a role and empty text; Azure's first chunk has no choice at all. */
function saysSomething(choice: unknown): boolean {
  if (!isRecord(choice) || !isRecord(choice['delta']) || (choice['finish_reason'] ?? null) !== null)
    return true;
  return Object.entries(choice['delta']).some(
    ([name, value]) => name !== 'role' && value !== null && value !== '',
  );
}

// What a response's `usage` says that its provider counts of a call, in the shapes of OpenAI (chat, Responses, embeddings),
// Azure, Groq, Mistral, Anthropic, Gemini, Bedrock, Cohere and Ollama. A member that is missing or no count is not stated; nothing is ever read
// as 0 that was not 0.

/** Of very many errors in one part of a text the last are read. */
const maxErrors = 4;

/**
 * Reads a response part by part while it passes. Returns what its usage, and an error inside it, have taught up to now; `null` = nothing.
 * `nowMs`: the wall clock.
 */
export function usageWatch(): (text: string, nowMs: number) => Feedback | null {
  let members: JsonRecord = {};
  let late: Feedback | null = null;
  return (text, nowMs) => {
    members = withUsageIn(members, text);
    const lines = isErrorText(text) ? text.split(/[\r\n]+/).filter(isErrorText) : [];
    for (const line of lines.slice(-maxErrors)) {
      const feedback = learnFromStreamEvent(line, nowMs);
      if (feedback.errorStatus !== undefined) late = feedback;
    }
    const usage = tokenUsage(members);
    const reported = usage === null ? null : { ...nothingLearned, usage };
    return late === null ? reported : { ...reported, ...late };
  };
}

/** A larger number is not taken for a count of one call's tokens, so that sums stay exact. */
const maxTokens = 1e12;
/** Groq's responses carry this member; it alone does not count what OpenAI's shape calls cached. */
const groqMark = 'x_groq';

/** Members whose objects count tokens, and a part of Bedrock's stream of a model's own form: a document in base64. */
const usageMember =
  /"(?:usage|usageMetadata|billed_units|amazon-bedrock-invocationMetrics)"\s*:\s*(?=\{)|"bytes"\s*:\s*"(?<part>[\w+/=]+)"/g;
const ollamaCount = /"((?:prompt_)?eval_count)"\s*:\s*(\d{1,12})\b/g;
/** Of very many in one text the last are read. */
const maxRead = 32;
const countNames = wordsOf(
  'total_tokens prompt_tokens input_tokens output_tokens promptTokenCount totalTokenCount inputTokens outputTokens',
  'inputTokenCount outputTokenCount',
);

/**
 * Members of `usage` as `known`, with those that this text (a response, a part of it, or one event of a stream) adds. A stream may report
 * them in parts, each of which replaces what it names.
 */
function withUsageIn(known: JsonRecord, text: string): JsonRecord {
  let members = known;
  let readTo = 0;
  for (const { 0: name, index, groups } of [...text.matchAll(usageMember)].slice(-maxRead)) {
    const part = groups?.['part'];
    if (part !== undefined) members = withUsageIn(members, Buffer.from(part, 'base64').toString());
    if (part !== undefined || index < readTo) continue;
    const found = objectAt(text, index + name.length);
    if (found === null || !countNames.some((count) => countAt(found.value, count) !== null)) continue;
    readTo = found.end;
    const stated = Object.entries(found.value).filter(([, value]) => value !== null);
    members = { ...members, ...Object.fromEntries(stated) };
  }
  // Ollama counts among the members of its last line.
  for (const [, name = '', value] of members === known ? text.matchAll(ollamaCount) : [])
    members = { ...members, [name]: Number(value) };
  return members !== known && text.includes(`"${groqMark}"`) ? { ...members, [groqMark]: true } : members;
}

/** What the provider counts; `null` = the members state nothing. */
function tokenUsage(found: JsonRecord): TokenUsage | null {
  const at = (...names: readonly string[]): number | null =>
    names.map((name) => countAt(found, name)).find((count) => count !== null) ?? null;
  const usage = ofGemini(at) ?? ofCaches(at) ?? ofOpenAi(at, found);
  return usage !== null && Object.values(usage).every((tokens) => (tokens ?? 0) <= maxTokens) ? usage : null;
}

/** The first of these members that is a count. */
type At = (...names: readonly string[]) => number | null;

/** Input alone is counted against tokens per minute; the prompt includes what was cached, thoughts are output. */
function ofGemini(at: At): TokenUsage | null {
  const [prompt, all] = [at('promptTokenCount'), at('totalTokenCount')];
  if (prompt === null && all === null) return null;
  const input = prompt === null ? null : prompt + (at('toolUsePromptTokenCount') ?? 0);
  const [said, thought] = [at('candidatesTokenCount'), at('thoughtsTokenCount')];
  const output = said === null && thought === null ? null : (said ?? 0) + (thought ?? 0);
  return { prompt: input, kept: 0, input, output, total: input ?? all };
}

/**
 * Anthropic and Bedrock: input is what was neither read from the cache, which is free, nor written into it, which counts. Without the
 * members of a cache, Anthropic's are as OpenAI's. Of one of Anthropic's models Bedrock writes both; its own come last.
 */
function ofCaches(at: At): TokenUsage | null {
  const read = at('cache_read_input_tokens', 'cacheReadInputTokens', 'cacheReadInputTokenCount');
  const written = at('cache_creation_input_tokens', 'cacheWriteInputTokens', 'cacheWriteInputTokenCount');
  const ofBedrock = at('inputTokens', 'inputTokenCount', 'outputTokens', 'outputTokenCount');
  if (read === null && written === null && ofBedrock === null) return null;
  const plain = at('inputTokens', 'inputTokenCount', 'input_tokens');
  const output = at('outputTokens', 'outputTokenCount', 'output_tokens');
  const input = plain === null ? null : plain + (written ?? 0);
  const prompt = input === null ? null : input + (read ?? 0);
  return { prompt, kept: (read ?? 0) + (written ?? 0), input, output, total: both(input, output) };
}

/** Cached tokens are part of the prompt and count in full, but for Groq. */
function ofOpenAi(at: At, found: JsonRecord): TokenUsage | null {
  const prompt = at('prompt_tokens', 'input_tokens', 'prompt_eval_count');
  const output = at('completion_tokens', 'output_tokens', 'eval_count');
  const all = at('total_tokens') ?? both(prompt, output);
  if (prompt === null && output === null && all === null) return null;
  const details = recordAt(found, 'prompt_tokens_details') ?? recordAt(found, 'input_tokens_details');
  const read = found[groqMark] === true ? (countAt(details, 'cached_tokens') ?? 0) : 0;
  const kept = Math.min(read, prompt ?? 0, all ?? 0);
  return { prompt, kept, input: prompt && prompt - kept, output, total: all && all - kept };
}

/** The sum of two counts; `null` unless both are known. */
const both = (a: number | null, b: number | null): number | null => (a === null || b === null ? null : a + b);
