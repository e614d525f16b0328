/**
 * What the error body of a language model says: its codes, and the limiter's sentence in the grammar of OpenAI and Groq.
 *
 * Invariants: `error.code` decides, then `error.type`, never wording such as "billing" (texts of retryable refusals mention it) and never
 * the status alone. Linear, bounded, never throws; a number that is not in the text is `null`.
 */
import type { MeterName, QuotaScope } from '../../call.ts';
import { meaningOfWords, wordsOf } from '../../words.policy.ts';
import { isRecord, recordAt, stringAt, type JsonRecord } from './json.policy.ts';
import { providerError, type ProviderError } from '../../provider-error.policy.ts';

/** An error of any dialect, flattened. */
export interface ModelError {
  /** Codes from the most exact to the widest, lower case; numbers as text. */
  readonly codes: readonly string[];
  readonly type: string | null;
  /** Of its type and code what clients may branch on; `null` = no known word. */
  readonly said: ProviderError | null;
  readonly message: string;
  /** HTTP status that the error itself states; `null` = none. */
  readonly status: number | null;
  /** Google's violated quota ids. */
  readonly quotaIds: readonly string[];
  /** Fields that OpenRouter repeats in the body, lower-case names. */
  readonly fields: ReadonlyMap<string, string>;
}

/**
 * `quota` money or a spend cap · `unclear` payment asked for in words that are not known · `too_large` the call asks for too much · `daily` a day's quota that the provider says not to wait for ·
 * `overload` the provider is short of capacity, or wants slower growth · `rate` wait and resend.
 */
export type Verdict = 'quota' | 'unclear' | 'too_large' | 'daily' | 'overload' | 'rate';

/** The error in a parsed body, or `null` when it holds none. */
export function errorIn(body: unknown): ModelError | null {
  const outer: unknown = Array.isArray(body) ? body[0] : body; // Gemini's stream endpoint wraps errors in a list
  if (!isRecord(outer)) return null;
  const inner =
    outer['error'] ??
    recordAt(outer, 'response')?.['error'] ??
    recordAt(outer, 'detail') ?? // ElevenLabs
    errorOfChoice(outer) ??
    errorOfBase(outer);
  // Some proxies put the error of their provider into one of their own.
  if (isRecord(inner)) return flatten({ ...inner, ...recordAt(inner, 'error') });
  if (typeof inner === 'string') return flatten({ ...outer, message: inner });
  if (inner === true) return flatten(outer);
  // Mistral has no envelope, and neither has an error event of the Responses API.
  return outer['object'] === 'error' || outer['type'] === 'error' ? flatten(outer) : null;
}

/** True where a text may hold an error. */
export const isErrorText = (text: string): boolean =>
  /"error"(?!\s*:\s*null\b)|"base_resp"\s*:\s*\{[^{}]{0,500}?"status_code"\s*:\s*"?[1-9]/.test(text);

/** The HTTP statuses that MiniMax's codes mean. It writes them into a 200. */
const statusOfBase = meaningOfWords<number>([
  [400, '1026 1027 1042 2013'],
  [401, '1004 2049'],
  [402, '1008'],
  [429, '1002 1039 1041 2045 2056'],
  [504, '1001'],
]);

/** MiniMax: `base_resp` stands in every response, and its code is 0 in a success. */
function errorOfBase(body: JsonRecord): JsonRecord | null {
  const base = recordAt(body, 'base_resp');
  const code = word(base?.['status_code']);
  if (code === null || code === '' || code === '0') return null;
  return { code, status: statusOfBase.get(code) ?? unknownErrorStatus, message: base?.['status_msg'] };
}

/** OpenRouter writes the error of a provider into the choice that the provider did not make. */
function errorOfChoice(body: JsonRecord): unknown {
  const choices = body['choices'];
  return Array.isArray(choices) ? recordAt(choices[0], 'error') : null;
}

function flatten(error: JsonRecord): ModelError {
  const details = error['details'];
  const parts = (Array.isArray(details) ? details : [details]).filter(isRecord);
  const detailCodes = parts.map((part) => stringAt(part, 'error_code') ?? stringAt(part, 'reason'));
  const limitSource = stringAt(recordAt(error, 'metadata'), 'limit_source');
  return {
    codes: [...detailCodes, limitSource, word(error['code'])]
      .filter((code) => code !== null)
      .map((code) => code.toLowerCase()),
    type: (stringAt(error, 'type') ?? stringAt(error, 'status'))?.toLowerCase() ?? null,
    said: providerError({ type: error['type'] ?? error['status'], code: error['code'] }),
    message: stringAt(error, 'message') ?? '',
    status: statusAmong(error),
    quotaIds: parts.flatMap(violatedQuotas),
    fields: repeatedFields(error),
  };
}

const statusMembers = wordsOf('code status status_code statusCode http_status httpStatus http_code httpCode');

/** Numbers, and texts that begin with one: `"429"`, `"429 Too Many Requests"`. */
function statusAmong(error: JsonRecord): number | null {
  for (const name of statusMembers) {
    const written = /^\s*([45]\d\d)(?![\d.])/.exec(word(error[name]) ?? '')?.[1];
    if (written !== undefined) return Number(written);
  }
  return null;
}

function word(value: unknown): string | null {
  return typeof value === 'string' ? value : typeof value === 'number' ? String(value) : null;
}

function violatedQuotas(part: JsonRecord): readonly string[] {
  const violations = part['violations'];
  if (!Array.isArray(violations)) return [];
  return violations.map((violation) => stringAt(violation, 'quotaId')).filter((id) => id !== null);
}

function repeatedFields(error: JsonRecord): ReadonlyMap<string, string> {
  const fields = new Map<string, string>();
  for (const [name, value] of Object.entries(recordAt(recordAt(error, 'metadata'), 'headers') ?? {})) {
    if (typeof value === 'string') fields.set(name.toLowerCase(), value);
  }
  return fields;
}

/** Verdicts by code or type. */
const byName = meaningOfWords<Verdict>([
  ['quota', 'insufficient_quota credit_balance_exhausted billing_not_active billing_hard_limit_reached'],
  [
    'quota',
    'organization_spend_limit_exceeded project_spend_limit_exceeded organization_usage_limit_exceeded',
  ],
  [
    'quota',
    'enforced_spend_limit_reached insufficientbalance insufficient_balance insufficient_balance_error',
  ],
  ['quota', 'insufficient_credits insufficient_funds credits_exhausted budget_exceeded'],
  ['quota', 'billing_error'], // Anthropic, with 402
  ['quota', 'exceeded_current_quota_error'], // Moonshot
  ['quota', '1113 1308 1309 1310'], // Zhipu: no balance; then the hours, the week and the month of a plan
  ['quota', 'usage_limit_reached usage_not_included'], // of a subscription
  ['quota', 'quota_exceeded'], // Copilot, ElevenLabs; `mayBeRate` below
  ['quota', 'accountoverdueerror'], // Ark
  ['quota', 'arrearage allocationquota.freetieronly'], // Alibaba
  ['daily', 'setlimitexceeded'], // Ark: the model is paused, others go on
  ['daily', '1304'], // Zhipu
  ['overload', 'slow_down server_is_overloaded model_capacity_exhausted overloaded_error'],
  [
    'overload',
    'service_unavailable_error unavailable system_busy serveroverloaded service_tier_capacity_exceeded',
  ],
  ['overload', 'engine_overloaded engine_overloaded_error'], // OpenAI, Moonshot
  ['overload', 'capacity_exceeded nocapacity'], // Groq's flex tier, with 498; Azure
  ['rate', 'rate_limit_exceeded rate_limit_error rate_limited resource_exhausted'],
]);

/**
 * The verdict by code, then by type; `null` when neither is known, so that only the status can decide. `tooLarge`: the message
 * says that the call is larger than the limit itself.
 */
export function verdictOf(error: ModelError, tooLarge: boolean): Verdict | null {
  const known = [...error.codes, error.type ?? ''].find((name) => byName.has(name));
  const verdict = byName.get(known ?? '') ?? null;
  if (verdict !== 'rate') return verdict;
  if (tooLarge) return 'too_large';
  return error.quotaIds.some((id) => id.includes('PerDay')) ? 'daily' : 'rate';
}

/** Sentences of a 429 whose code or type, if there is one, is that of any rate limit. */
const lastingSentences: readonly (readonly [RegExp, Verdict])[] = [
  [/\btoo many tokens per day\b/i, 'daily'], // Bedrock
  [/\blimit: 0(?![\d.,]*\d)/i, 'daily'], // Gemini: the plan has nothing of this model
  [/\bused up your daily (?:free )?allocation\b|\bexhausted its free trial\b/i, 'quota'], // Cloudflare Workers AI, Ark
  [/\b(?:calls|requests|tokens)\b ?(?:\/|per|a) ?month\b/i, 'quota'], // Cohere: a trial key
  // Gemini: "Your project has exceeded its monthly spending cap", "Your prepayment credits are depleted"; fal: "Exhausted balance"
  [/\b(?:reached|exceeded|exhausted|used up)\b[^.]{0,30}\bmonthly\b/i, 'quota'],
  [/\bcredits (?:are|have been) (?:depleted|exhausted|used up)\b|\bexhausted balance\b/i, 'quota'],
];

/** The verdict on a refusal that only its sentence shows to last; `null`: it does not. */
export const lastingVerdict = (sentence: string): Verdict | null =>
  lastingSentences.find(([pattern]) => pattern.test(sentence.slice(0, maxSentence)))?.[1] ?? null;

const maxSentence = 2_000;

/** Some providers say the same of a quota of minutes: then they state its end. */
export const mayBeRate = ({ codes, type }: ModelError): boolean =>
  [...codes, type].includes('quota_exceeded');

/** The status with which providers send an error of this code or type, where its verdict does not show it. */
const statusByName = meaningOfWords<number>([
  [400, 'invalid_request_error invalid_argument failed_precondition context_length_exceeded'],
  [400, 'string_above_max_length content_policy_violation content_filter'],
  [401, 'authentication_error unauthenticated invalid_api_key'],
  [402, 'billing_error'],
  [403, 'permission_error permission_denied'],
  [404, 'not_found_error not_found model_not_found'],
  [413, 'request_too_large'],
  [504, 'timeout_error deadline_exceeded'],
  [529, 'overloaded_error'],
]);
const statusByVerdict: Readonly<Record<Verdict, number>> = {
  rate: 429,
  daily: 429,
  quota: 429,
  unclear: 402,
  too_large: 413,
  overload: 503,
};
/** What is known of an error without a known word: that there is one. */
const unknownErrorStatus = 500;

/**
 * The HTTP status that the error in the body of a success means: the one that it states, else the one that belongs to its code or
 * type. `null`: the body holds no error, or something was made beside it, so that the call has run.
 */
export function statusInside(body: unknown): number | null {
  const error = errorIn(body);
  if (error === null || saysNothing(error) || hasOutput(body)) return null;
  if (error.status !== null) return error.status;
  const named = [...error.codes, error.type ?? ''].map((name) => statusByName.get(name));
  const status = named.find((known) => known !== undefined);
  const verdict = verdictOf(error, false);
  return status ?? (verdict === null ? unknownErrorStatus : statusByVerdict[verdict]);
}

/** Some APIs have the member in every response, and fill it where there is an error. */
const saysNothing = ({ codes, type, message, status }: ModelError): boolean =>
  codes.length === 0 && type === null && message === '' && status === null;

/** True where a response has content beside its error. */
function hasOutput(body: unknown): boolean {
  if (!isRecord(body)) return false;
  const { choices, output, content, candidates, data } = body;
  const isFilled = (list: unknown): boolean => Array.isArray(list) && list.length > 0;
  return (
    [output, content, candidates, data].some(isFilled) || (Array.isArray(choices) && choices.some(hasText))
  );
}

function hasText(choice: unknown): boolean {
  const said = recordAt(choice, 'message') ?? recordAt(choice, 'delta');
  const { content, tool_calls: tools } = said ?? {};
  const text = content ?? (isRecord(choice) ? choice['text'] : undefined);
  return (
    (typeof text === 'string' && text !== '') ||
    (Array.isArray(text) && text.length > 0) ||
    Array.isArray(tools)
  );
}

const sentences = wordsOf('message detail title error_description error_message msg');

/** What a body says, also where its error is in no known form: the first sentence of it, and of its first error. */
export function sentenceIn(body: unknown): string {
  const outer: unknown = Array.isArray(body) ? body[0] : body;
  const errors = isRecord(outer) ? outer['errors'] : undefined;
  const first: unknown = Array.isArray(errors) ? errors[0] : recordAt(outer, 'detail');
  if (typeof first === 'string') return first;
  for (const part of [outer, first]) {
    for (const name of sentences) {
      const sentence = stringAt(part, name);
      if (sentence !== null) return sentence;
    }
  }
  return '';
}

// The limiter's sentence

/** What a refusal's text states. Counts are units as written. */
export interface LimiterMessage {
  /** `RPM`, `RPD`, `TPM`, `TPD`, `ITPM`, `OTPM`, or the words before "per" when there is no abbreviation for them. */
  readonly metric: string | null;
  readonly meter: MeterName | null;
  readonly windowMs: number | null;
  readonly limit: number | null;
  readonly used: number | null;
  readonly requested: number | null;
  /** "Request too large": no wait will make it fit. */
  readonly tooLarge: boolean;
  readonly scope: QuotaScope;
}

export function readMessage(text: string): LimiterMessage {
  const message = text.slice(0, maxSentence);
  const metric = metricOf(message);
  const limit = numberAfter(/\bLimit:? (\d[\d,]*)/, message);
  const requested = numberAfter(/\bRequested ~?(\d[\d,]*)/, message);
  return {
    ...metric,
    limit,
    used: numberAfter(/\bUsed (\d[\d,]*)/, message),
    requested,
    tooLarge:
      /\brequest too large\b/i.test(message) || (limit !== null && requested !== null && requested > limit),
    scope: scopeOf(message),
  };
}

const metricWords = /\bon ([a-z-]+(?: [a-z-]+)?) per (minute|min|day)\b(?: \(([A-Z]{2,5})\))?/;

function metricOf(message: string): Pick<LimiterMessage, 'metric' | 'meter' | 'windowMs'> {
  const found = metricWords.exec(message);
  if (found === null) return { metric: null, meter: null, windowMs: null };
  const what = found[1] ?? '';
  const daily = found[2] === 'day';
  const letter = what === 'requests' ? 'R' : what === 'tokens' ? 'T' : null;
  const metric = found[3] ?? (letter === null ? what : `${letter}P${daily ? 'D' : 'M'}`);
  return { metric, meter: meterOf(what, daily), windowMs: daily ? 86_400_000 : 60_000 };
}

function meterOf(what: string, daily: boolean): MeterName | null {
  if (what === 'requests') return daily ? 'requests_day' : 'requests';
  if (what === 'input tokens' && !daily) return 'input_tokens';
  if (what === 'output tokens' && !daily) return 'output_tokens';
  if (what.endsWith('tokens')) return daily ? 'tokens_day' : 'tokens';
  return what.endsWith('images') && !daily ? 'images' : null;
}

function numberAfter(pattern: RegExp, message: string): number | null {
  const digits = pattern.exec(message)?.[1];
  return digits === undefined ? null : Number(digits.replaceAll(',', ''));
}

function scopeOf(message: string): QuotaScope {
  const organization = /\bin (?:project \S{1,100} )?organization `?([\w-]{1,100})/.exec(message)?.[1];
  const project = /\bin project `?([\w-]{1,100})/.exec(message)?.[1];
  const family = /\(for limit ([^)\s]{1,100})\)/.exec(message)?.[1];
  return {
    ...(organization === undefined ? {} : { organization }),
    ...(project === undefined ? {} : { project }),
    ...(family === undefined ? {} : { family }),
  };
}
