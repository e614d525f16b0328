/**
 * What a language-model response teaches, in the dialects of OpenAI, Azure, Groq, Anthropic, Gemini, Mistral, Cerebras
 * and OpenRouter, and in the fields that no provider owns.
 *
 * Owns: joining fields, error body and message into one `Feedback`. Does not own: reading each of the three, and
 * whether anything is sent again. Invariant: "remaining is 0" is never read as a throttle (`remaining` is not 0 on a
 * real 429), and the wait is never earlier than the most exact thing that the response states.
 */
import type { Feedback, MeterName, MeterReport, QuotaScope, Throttle } from '../../call.ts';
import {
  exhaustedForMs,
  modelReadings,
  renewalTrapMs,
  reportsOf,
  unownedReadings,
  type Reading,
} from './limits.policy.ts';
import {
  concernsCallAlone,
  errorIn,
  isErrorText,
  lastingVerdict,
  mayBeRate,
  paymentIn,
  providerRefusal,
  readMessage,
  sentenceIn,
  statusInside,
  verdictOf,
  type LimiterMessage,
  type ModelError,
  type RefusalWords,
  type Verdict,
} from './refusal.policy.ts';
import { believable, nothingLearned, type ResponseReader } from './response.policy.ts';
import { isRecord, lastObject, parseJson, stringAt, type JsonRecord } from './json.policy.ts';
import { parsedWaitMs } from '../retry-after.policy.ts';
import { noUsage, tokenUsage, usageInFields, withUsageIn } from './usage.policy.ts';
import { wordsOf } from '../../words.policy.ts';

/** What the body of a refusal says. */
interface Refused {
  readonly error: ModelError | null;
  readonly message: LimiterMessage;
  /** The verdict by the provider's own words, else by code and type, else by status; `null`: it is no refusal. */
  readonly verdict: Verdict | null;
}

const nothingSaid = readMessage('');

export function learnFromModel(response: ResponseReader): Feedback {
  const { fields, body, at } = response;
  // A success without the word is not parsed.
  const mayHoldError = response.status < 400 && body !== null && isErrorText(body);
  const errorStatus = mayHoldError ? statusInside(response.json) : null;
  const status = errorStatus ?? response.status;
  const refused = status >= 400 ? refusedIn(response.json, status, body ?? '') : null;
  const own = modelReadings(fields, at);
  const readings = own.length > 0 ? own : unownedReadings(refused?.error?.fields ?? fields, at);
  const fieldReports = reportsOf(readings);
  if (refused === null) {
    return { meters: fieldReports, throttle: null, ...usageIn(body, fields), ...scope(fields, {}) };
  }
  const throttle = throttleOf(response, status, readings, refused, fieldReports);
  return {
    meters: throttle === null ? fieldReports : withMessage(fieldReports, refused.message),
    throttle,
    ...(errorStatus === null ? {} : { errorStatus }),
    ...saidBeside(throttle, refused.error),
    ...requested(refused.message),
    ...scope(fields, refused.message.scope),
  };
}

/**
 * Error and message in a parsed body of a response with this status, or with an error of this status inside. `bare`: what the body
 * says where it is no JSON.
 */
function refusedIn(body: unknown, status: number, bare = ''): Refused {
  const error = errorIn(body);
  const own = providerRefusal(error);
  const message = error === null ? nothingSaid : { ...readMessage(error.message), ...own.message };
  const known = own.verdict ?? (error === null ? null : verdictOf(error, message.tooLarge));
  const words: RefusalWords = {
    status,
    names: error === null ? [] : [...error.codes, error.type ?? ''],
    text: error?.message ?? (body === undefined ? bare : sentenceIn(body)),
  };
  return { error, message, verdict: verdictFor(known, words, message) };
}

/** The verdict: what lies in the call itself goes before what codes and types say, and those before the status. */
function verdictFor(known: Verdict | null, words: RefusalWords, message: LimiterMessage): Verdict | null {
  const stated = known ?? byStatus(words, message);
  const verdict = (stated === 'rate' ? lastingVerdict(words.text) : null) ?? stated;
  const isCallAlone = verdict !== null && verdict !== 'overload' && concernsCallAlone(words);
  return isCallAlone ? 'too_large' : verdict;
}

/** A 402 that states a time asks for a wait, and condemns nobody. So does what others say of a quota of minutes. */
const waitsOut = ({ verdict, error }: Refused, status: number, namedMs: number | null): boolean =>
  namedMs !== null &&
  (status === 402 || (error !== null && mayBeRate(error))) &&
  (verdict === 'quota' || verdict === 'unclear');

function throttleOf(
  response: ResponseReader,
  status: number,
  readings: readonly Reading[],
  refused: Refused,
  reports: readonly MeterReport[],
): Throttle | null {
  if (refused.verdict === null) return null;
  const { statedMs: stated, bodyMs: inBody, fields } = response;
  // Mistral, to a key without an allowance: no minute brings one.
  const hasNone = stated === null && readings.some(({ meter, limit }) => meter === 'requests' && limit === 0);
  const own = hasNone && refused.verdict === 'rate' ? 'daily' : refused.verdict;
  const verdict = waitsOut(refused, status, stated ?? inBody) ? 'rate' : own;
  const otherMs = verdict === 'quota' ? (stated ?? inBody) : stated;
  const waitMs = verdict === 'rate' ? rateWaitMs(stated, inBody, readings) : otherMs;
  return asThrottle(verdict, waitMs, meterAtFault(fields, refused, reports));
}

const byPayment = { later: 'rate', quota: 'quota', unclear: 'unclear' } as const;

function byStatus(words: RefusalWords, message: LimiterMessage): Verdict | null {
  const { status } = words;
  if (status === 429) return message.tooLarge ? 'too_large' : 'rate';
  if (status === 402) return byPayment[paymentIn(words)];
  return status === 503 || status === 529 ? 'overload' : null;
}

/**
 * The wait that a refusal states, the first of: `retry-after-ms`, `retry-after`, the body, the end of an exhausted window. In Azure's
 * trap (`renewalTrapMs`) it is at least what the body states, or else the renewal period.
 */
function rateWaitMs(
  stated: number | null,
  inBody: number | null,
  readings: readonly Reading[],
): number | null {
  const trapMs = renewalTrapMs(readings);
  if (trapMs !== null) return Math.max(stated ?? 0, inBody ?? trapMs);
  return stated ?? inBody ?? exhaustedForMs(readings);
}

/** What clients may branch on, where a breaker will answer in the provider's stead. */
function saidBeside(throttle: Throttle | null, error: ModelError | null): Pick<Feedback, 'said'> {
  const said = throttle?.kind === 'permanent' ? (error?.said ?? null) : null;
  return said === null ? {} : { said };
}

/** The throttle that a verdict means to the rest of the gateway. */
function asThrottle(verdict: Verdict, waitMs: number | null, meter: MeterName | null): Throttle {
  switch (verdict) {
    case 'rate':
      return { kind: 'rate', waitMs, meter };
    case 'overload':
      return { kind: 'overload', waitMs };
    case 'quota':
    case 'unclear':
    case 'too_large':
      return { kind: 'permanent', reason: verdict, waitMs };
    case 'daily':
      // Gemini states a `retryDelay` beside a spent day, which is not the day's end.
      return { kind: 'permanent', reason: 'daily', waitMs: null };
  }
}

function meterAtFault(
  fields: ReadonlyMap<string, string>,
  refused: Refused,
  reports: readonly MeterReport[],
): MeterName | null {
  if (refused.message.meter !== null) return refused.message.meter;
  const type = (fields.get('x-ratelimit-type') ?? refused.error?.type ?? '').toLowerCase();
  if (type !== 'tokens' && type !== 'requests') return null;
  // `requests` stands for the minute and for the day: believe it only as far as the fields name the window.
  const candidates = reports.filter(({ meter }) => meter === type || meter === `${type}_day`);
  return candidates.length === 1 ? (candidates[0]?.meter ?? null) : type;
}

const wholeMetrics = new Set(['RPM', 'RPD', 'TPM', 'TPD', 'ITPM', 'OTPM', 'input-images', 'images']);

/**
 * Adds what the sentence says about its meter where the fields are silent or speak of a wider limit: a project's own
 * limit is named in the text only. `Used` is rounded up, so the truth is within one unit below.
 */
function withMessage(reports: readonly MeterReport[], message: LimiterMessage): readonly MeterReport[] {
  const { meter, metric, limit, used, windowMs } = message;
  if (meter === null || limit === null || limit <= 0 || !wholeMetrics.has(metric ?? '')) return reports;
  const known = reports.find((report) => report.meter === meter);
  if (known !== undefined && known.limit <= limit) return reports;
  const level = used === null ? null : { lowest: Math.max(0, used - 1), highest: used };
  return [...reports.filter((report) => report !== known), { meter, limit, windowMs, level }];
}

/** Tokens that the limiter counted for a refused call. */
function requested({ meter, requested: units }: LimiterMessage): Pick<Feedback, 'requestedTokens'> {
  const isTokens = meter === 'tokens_day' || meter?.endsWith('tokens') === true;
  return units !== null && isTokens ? { requestedTokens: units } : {};
}

function usageIn(body: string | null, fields: ReadonlyMap<string, string>): Pick<Feedback, 'usage'> {
  const inBody = body === null ? null : tokenUsage(withUsageIn(noUsage, body));
  const usage = inBody ?? usageInFields(fields);
  return usage === null ? {} : { usage };
}

function scope(fields: ReadonlyMap<string, string>, stated: QuotaScope): Pick<Feedback, 'scope'> {
  const organization = fields.get('openai-organization') ?? stated.organization;
  const project = fields.get('openai-project') ?? stated.project;
  if (organization === undefined && project === undefined && stated.family === undefined) return {};
  return {
    scope: {
      ...stated,
      ...(organization === undefined ? {} : { organization }),
      ...(project === undefined ? {} : { project }),
    },
  };
}

// One event inside a 200 event stream, which may turn into a refusal after its head said success

/** The data of an event as an error where only the event's name says that it is one. */
export function namedError(data: string, event: string | undefined): string {
  if (event !== 'error' || data.includes('"error"')) return data;
  return isRecord(parseJson(data)) ? `{"error":${data}}` : JSON.stringify({ error: data });
}

/**
 * Learns from the data of one event (JSON; `data:` prefixes are tolerated). Anything else teaches nothing. `nowMs`: the wall clock, for
 * an instant in it.
 */
export function learnFromStreamEvent(text: string, nowMs: number): Feedback {
  if (!isErrorText(text)) return nothingLearned;
  const body = parseJson(text.replace(/^data: ?/gm, '')) ?? errorAlone(text);
  const errorStatus = statusInside(body);
  if (errorStatus === null) return nothingLearned;
  const refused = refusedIn(body, errorStatus);
  const { message, verdict } = refused;
  if (verdict === null) return { ...nothingLearned, errorStatus };
  const waitMs = verdict === 'rate' ? parsedWaitMs(body, { date: null, now: nowMs }) : null;
  const meters = withMessage([], message);
  return believable({
    meters,
    throttle: asThrottle(verdict, waitMs, message.meter),
    errorStatus,
    ...requested(message),
    ...(Object.keys(message.scope).length === 0 ? {} : { scope: message.scope }),
  });
}

/** The error of an event that is cut, because the response around the error is long. */
function errorAlone(text: string): JsonRecord | null {
  const error = lastObject(text, 'error', () => true);
  return error === null ? null : { error };
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
  if (!isRecord(choice) || !isRecord(choice['delta'])) return true;
  const isOver = (choice['finish_reason'] ?? null) !== null;
  const said = Object.entries(choice['delta']).some(
    ([name, value]) => name !== 'role' && value !== null && value !== '',
  );
  return isOver || said;
}
