/**
 * What a refusal of a language model means: its codes, its provider's own words, and the limiter's sentence in the grammar of OpenAI and
 * Groq, as tables.
 *
 * Invariants: `error.code` decides, then `error.type`, never wording such as "billing" (texts of retryable refusals mention it) and never
 * the status alone. Linear, bounded, never throws; a number that is not in the text is `null`; the first line of a table that fits decides.
 */
import type { MeterName, QuotaScope } from '../../call.ts';
import type { ProviderError } from '../../errors.ts';
import { meaningOfWords, wordsOf } from '../../words.policy.ts';
import { given, isRecord, recordAt, stringAt, type JsonRecord } from './json.policy.ts';
import { dayMs, minuteMs } from '../../time-units.ts';

/**
 * `quota` money or a spend cap · `unclear` payment asked for in words that are not known · `too_large` the call asks for too much · `daily` a day's quota that the provider says not to wait for ·
 * `overload` the provider is short of capacity, or wants slower growth · `rate` wait and resend.
 */
export type Verdict = 'quota' | 'unclear' | 'too_large' | 'daily' | 'overload' | 'rate';

/** What the body of a refusal says. */
export interface Refused {
  readonly error: ModelError | null;
  readonly message: LimiterMessage;
  /** The verdict by the provider's own words, else by code and type, else by status; `null`: it is no refusal. */
  readonly verdict: Verdict | null;
}

/** A longer sentence is read no further. Characters. */
const maxSentence = 2_000;

/**
 * Error and message in a parsed body of a response with this status, or with an error of this status inside. `bare`: what the body
 * says where it is no JSON.
 */
export function refusedIn(body: unknown, status: number, bare = ''): Refused {
  const error = errorIn(body);
  const own = providerRefusal(error);
  const message = { ...readMessage(error?.message ?? ''), ...own.message };
  const text = (error?.message ?? (body === undefined ? bare : sentenceIn(body))).slice(0, maxSentence);
  const names = error?.names ?? [];
  const named = own.verdict ?? (error === null ? null : verdictOf(error, message.tooLarge));
  const stated = named ?? byStatus(status, names, text, message.tooLarge);
  const sentence = stated === 'rate' ? lastingSentences.find(([, pattern]) => pattern.test(text)) : null;
  const lasting = sentence?.[0] ?? stated;
  // What lies in the call itself goes before what codes and types say, and those before the status.
  const isCallAlone = lasting !== null && lasting !== 'overload' && liesInCall(status, names, text);
  return { error, message, verdict: isCallAlone ? 'too_large' : lasting };
}

function byStatus(status: number, names: readonly string[], text: string, tooLarge: boolean): Verdict | null {
  if (status === 429) return tooLarge ? 'too_large' : 'rate';
  if (status === 402) return paymentIn(names, text);
  return status === 503 || status === 529 ? 'overload' : null;
}

// The error in a body, whatever its envelope

/** An error of any dialect, flattened. */
interface ModelError {
  /** Codes from the most exact to the widest, and the type, lower case; numbers as text. */
  readonly names: readonly string[];
  readonly type: string;
  /** Of its type and code what clients may branch on; `null` = no known word. */
  readonly said: ProviderError | null;
  readonly message: string;
  /** HTTP status that the error itself states; `null` = none. */
  readonly status: number | null;
  /** It is of a day's quota, as Google names it. */
  readonly isDaily: boolean;
  /** Fields that OpenRouter repeats in the body, lower-case names. */
  readonly fields: ReadonlyMap<string, string>;
}

/** The error in a parsed body, or `null` when it holds none. */
function errorIn(body: unknown): ModelError | null {
  const outer: unknown = Array.isArray(body) ? body[0] : body; // Gemini's stream endpoint wraps errors in a list
  if (!isRecord(outer)) return null;
  const { choices } = outer;
  const inner =
    outer['error'] ??
    recordAt(outer, 'response')?.['error'] ??
    recordAt(outer, 'detail') ?? // ElevenLabs
    (Array.isArray(choices) ? recordAt(choices[0], 'error') : null); // OpenRouter, of a provider
  // Some proxies put the error of their provider into one of their own.
  if (isRecord(inner)) return flatten({ ...inner, ...recordAt(inner, 'error') });
  if (typeof inner === 'string') return flatten({ ...outer, message: inner });
  // Mistral has no envelope, and neither has an error event of the Responses API.
  const isError = inner === true || outer['object'] === 'error' || outer['type'] === 'error';
  return isError ? flatten(outer) : null;
}

/** True where a text may hold an error. */
export const isErrorText = (text: string): boolean => /"error"(?!\s*:\s*null\b)/.test(text);

const statusMembers = wordsOf('code status status_code statusCode http_status httpStatus http_code httpCode');

function flatten(error: JsonRecord): ModelError {
  const parts = [error['details']].flat().filter(isRecord);
  const violations = parts.flatMap((part) => [part['violations']].flat());
  const type = stringAt(error, 'type') ?? stringAt(error, 'status') ?? '';
  const metadata = recordAt(error, 'metadata');
  const headers = Object.entries(recordAt(metadata, 'headers') ?? {});
  // Numbers, and texts that begin with one: `"429"`, `"429 Too Many Requests"`.
  const statuses = statusMembers.flatMap(
    (name) => /^\s*([45]\d\d)(?![\d.])/.exec(word(error[name]))?.[1] ?? [],
  );
  return {
    names: [
      ...parts.map((part) => stringAt(part, 'error_code') ?? stringAt(part, 'reason') ?? ''),
      stringAt(metadata, 'limit_source') ?? '',
      word(error['code']),
      type,
    ].map((name) => name.toLowerCase()),
    type: type.toLowerCase(),
    said: providerError(error['type'] ?? error['status'], error['code']),
    message: stringAt(error, 'message') ?? '',
    status: statuses[0] === undefined ? null : Number(statuses[0]),
    isDaily: violations.some((one) => stringAt(one, 'quotaId')?.includes('PerDay') === true),
    fields: new Map(headers.map(([name, value]) => [name.toLowerCase(), word(value)])),
  };
}

/** A text or a number as a text; of anything else an empty one. */
const word = (value: unknown): string =>
  typeof value === 'string' || typeof value === 'number' ? String(value) : '';

const sentences = wordsOf('message detail title error_description error_message msg');

/** What a body says, also where its error is in no known form: the first sentence of it, and of its first error. */
function sentenceIn(body: unknown): string {
  const outer: unknown = Array.isArray(body) ? body[0] : body;
  const errors = isRecord(outer) ? outer['errors'] : undefined;
  const first: unknown = Array.isArray(errors) ? errors[0] : recordAt(outer, 'detail');
  if (typeof first === 'string') return first;
  return [outer, first].flatMap((part) => sentences.flatMap((name) => stringAt(part, name) ?? []))[0] ?? '';
}

// Codes and types

/** Verdicts by code or type. */
const byName = meaningOfWords<Verdict>([
  ['quota', 'insufficient_quota credit_balance_exhausted billing_not_active billing_hard_limit_reached'],
  ['quota', 'organization_spend_limit_exceeded project_spend_limit_exceeded budget_exceeded'],
  ['quota', 'organization_usage_limit_exceeded enforced_spend_limit_reached insufficientbalance'],
  ['quota', 'insufficient_balance insufficient_balance_error insufficient_credits insufficient_funds'],
  ['quota', 'credits_exhausted usage_limit_reached usage_not_included'],
  ['quota', 'billing_error exceeded_current_quota_error'], // Anthropic, with 402; Moonshot
  ['quota', '1113 1308 1309 1310'], // Zhipu: no balance; then the hours, the week and the month of a plan
  ['quota', 'quota_exceeded'], // Copilot, ElevenLabs; `mayBeRate` below
  ['quota', 'accountoverdueerror arrearage allocationquota.freetieronly'], // Ark, Alibaba
  ['daily', 'setlimitexceeded 1304'], // Ark: the model is paused, others go on; Zhipu
  ['overload', 'slow_down server_is_overloaded model_capacity_exhausted overloaded_error capacity_exceeded'],
  ['overload', 'service_unavailable_error unavailable system_busy serveroverloaded nocapacity'],
  ['overload', 'service_tier_capacity_exceeded engine_overloaded engine_overloaded_error'],
  ['rate', 'rate_limit_exceeded rate_limit_error rate_limited resource_exhausted'],
]);

/**
 * Words of providers' errors, beside those of the tables above, that Sluice repeats in a breaker's answers, so that clients that branch on them
 * still do. A closed set, in lower case: whatever else an upstream writes stays with the upstream.
 */
const otherWords = wordsOf(
  'billing_limit_reached billing_limit_user_error account_deactivated access_terminated server_error tokens requests',
  'usage_limit_exceeded unknown_error api_error billing_disabled consumer_suspended credit_limit payment_required',
  'payment_required_error quota_limit_reached blocked_api_access spend_limit_reached account_suspended forbidden',
  'openrouter_in_flight_budget toomanyrequests too_many_requests quotaexceeded throttling.allocationquota',
  'throttlingexception servicequotaexceededexception accessdeniedexception limitexceededexception',
);

/** A known word, in the case in which the provider wrote it: clients that branch on it expect that. */
function wordOf(value: unknown): string | null {
  if (typeof value !== 'string') return null;
  // The lower case of some other letters is ASCII (U+212A becomes "k"): those are not in the vocabulary.
  const word = /^[\w.-]{1,64}$/.test(value) ? value.toLowerCase() : '';
  return byName.has(word) || statusByName.has(word) || otherWords.includes(word) ? value : null;
}

/** Of the type (or, as Google calls it, status) and the code of an error what is known; `null` = neither is. */
export function providerError(saidType: unknown, said: unknown): ProviderError | null {
  const type = wordOf(saidType);
  const isStatus = (typeof said === 'number' || typeof said === 'string') && /^[45]\d\d$/.test(String(said));
  const code = isStatus ? said : wordOf(said);
  return type === null && code === null ? null : { type, code };
}

/**
 * The verdict by code, then by type; `null` when neither is known, so that only the status can decide. `tooLarge`: the message
 * says that the call is larger than the limit itself.
 */
function verdictOf({ names, isDaily }: ModelError, tooLarge: boolean): Verdict | null {
  const [verdict = null] = names.flatMap((name) => byName.get(name) ?? []);
  if (verdict !== 'rate') return verdict;
  return tooLarge ? 'too_large' : isDaily ? 'daily' : 'rate';
}

/** Some providers say the same of a quota of minutes: then they state its end. */
export const mayBeRate = ({ error }: Refused): boolean => error?.names.includes('quota_exceeded') === true;

/** The status with which providers send an error of this code or type, where its verdict does not show it. */
const statusByName = meaningOfWords<number>([
  [400, 'invalid_request_error invalid_argument failed_precondition context_length_exceeded content_filter'],
  [401, 'authentication_error unauthenticated invalid_api_key'],
  [402, 'billing_error'],
  [403, 'permission_error permission_denied'],
  [404, 'not_found_error not_found model_not_found'],
  [413, 'request_too_large'],
  [504, 'timeout_error deadline_exceeded'],
  [529, 'overloaded_error'],
]);
const statusByVerdict = { rate: 429, daily: 429, quota: 429, unclear: 402, too_large: 413, overload: 503 };
/** What is known of an error without a known word: that there is one. */
const unknownErrorStatus = 500;

/**
 * The HTTP status that the error in the body of a success means: the one that it states, else the one that belongs to its code or
 * type. `null`: the body holds no error, or something was made beside it, so that the call has run.
 */
export function statusInside(body: unknown): number | null {
  const error = errorIn(body);
  // Some APIs have the member in every response, and fill it where there is an error.
  const saysNothing =
    error?.status === null && error.message === '' && error.names.every((name) => name === '');
  if (error === null || saysNothing || hasOutput(body)) return null;
  const [named] = error.names.flatMap((name) => statusByName.get(name) ?? []);
  const verdict = verdictOf(error, false);
  return error.status ?? named ?? (verdict === null ? unknownErrorStatus : statusByVerdict[verdict]);
}

/** True where a response has content beside its error. */
function hasOutput(body: unknown): boolean {
  if (!isRecord(body)) return false;
  const { choices, output, content, candidates, data } = body;
  const isFilled = (value: unknown): boolean =>
    (typeof value === 'string' || Array.isArray(value)) && value.length > 0;
  const texts = [choices].flat().flatMap((choice) => {
    const { content: said, tool_calls: tools } =
      recordAt(choice, 'message') ?? recordAt(choice, 'delta') ?? {};
    return [said ?? stringAt(choice, 'text'), tools];
  });
  return [output, content, candidates, data, ...texts].some(isFilled);
}

// Sentences

/** Sentences of a 429 whose code or type, if there is one, is that of any rate limit, but which lasts. */
const lastingSentences: readonly (readonly [Verdict, RegExp])[] = [
  // Bedrock; Gemini: the plan has nothing of this model
  ['daily', /\btoo many tokens per day\b|\blimit: 0(?![\d.,]*\d)/i],
  // Cloudflare Workers AI, Ark; Cohere: a trial key
  ['quota', /\bused up your daily (?:free )?allocation\b|\bexhausted its free trial\b/i],
  ['quota', /\b(?:calls|requests|tokens)\b ?(?:\/|per|a) ?month\b/i],
  // Gemini: "Your project has exceeded its monthly spending cap", "Your prepayment credits are depleted"; fal: "Exhausted balance"
  ['quota', /\b(?:reached|exceeded|exhausted|used up)\b[^.]{0,30}\bmonthly\b|\bexhausted balance\b/i],
  ['quota', /\bcredits (?:are|have been) (?:depleted|exhausted|used up)\b/i],
];

/** Codes and types of errors that lie in the call itself. */
const callCodes =
  /context_(?:length|window)|long_context|(?:request|prompt|input|body|payload|message|content)_too_(?:large|long)|above_max_length|max_(?:output_|completion_)?tokens|prompt_tokens_limit/;

/** Sentences, with any status, of errors that lie in the call itself. None of them is written by a limiter of rates. */
const callSentences: readonly RegExp[] = [
  // Anthropic: "Extra usage is required for long context requests."
  /\b(?:required?|requires|upgrade|credits)\b[^.]{0,60}\blong[- ]context\b|\blong[- ]context\b[^.]{0,60}\b(?:requires?|available)\b/i,
  // OpenAI and those that speak its form.
  /\bmaximum context length\b|\bcontext (?:length|window)\b[^.]{0,20}\bexceed/i,
  /\bexceeds?\b[^.]{0,30}\b(?:context (?:length|window|size|limit)|maximum (?:number of )?(?:input |prompt )?tokens)/i,
  /\b(?:prompt|input|request(?: entity| body)?|payload)\b(?: is)? too (?:large|long)\b/i,
];

const part =
  'tokens?|max_\\w+|prompt|context|input|output|request|message|model|size|length|duration|resolution|images?|videos?|n';
/** Sentences of a 402 that lie in the call itself. */
const paidCallSentences: readonly RegExp[] = [
  // What asks for less of the call. OpenRouter: "This request requires more credits, or fewer max_tokens."
  new RegExp(
    `\\b(?:reduc\\w+|lower|shorten|split|fewer|less|smaller|shorter|cheaper)\\b[^.]{0,30}\\b(?:${part})\\b`,
    'i',
  ),
  /\b(?:can ?not|can't|can only|unable to|only) afford\b|\btoo (?:high|large|long)\b/i,
  // OpenRouter: "Prompt tokens limit exceeded: 50000 > 20000."
  /\b(?:prompt|input|output|context)\b[^.]{0,30}\blimit\b[^.]{0,20}\bexceeded\b/i,
  // What compares the amount asked for with the one there is. Stability: "(need 6.5 credits, have 2)"
  /\b(?:needs?|requir\w+|costs?|request\w+|asked for)\b[^.]{0,20}\d[^]{0,60}\b(?:have|left|remain\w*|available|covers?|allow|balance)\b/i,
  // ElevenLabs: "You have 12 credits remaining, while 120 credits are required for this request."
  /\b(?:have|left|remain\w*|available|covers?|balance)\b[^]{0,60}\d[^]{0,40}\b(?:need|requir|request|cost)/i,
  /\b(?:this|your|the) (?:request|call|prompt|generation|image|video)\b[^.]{0,20}\b(?:requires?|costs?|needs?|would cost|exceeds?)\b/i,
  /\b(?:enough|insufficient|too low|not cover|(?:more|additional) credits)\b.{0,30}\b(?:for|to \w+|cover) (?:the cost of )?th(?:is|e) (?:request|call|prompt|model|generation|image|action)/i,
];

/** The whole account is concerned, whatever the call asks for: there is nothing left, or less than any call needs. */
const accountSentences: readonly RegExp[] = [
  /\b(?:afford|have|left|balance|available|covers?)\b(?: (?:is|of|only))?:? ?[$€£¥]? ?0+(?:\.0+)?(?![\d.]*\d)/i,
  /\bno (?:more |remaining |available )?(?:credits?|balance|funds|money)\b|\bnegative\b|\b(?:is|are) -\d/i,
  /\b(?:ran|run) out of\b|\bused up\b|(?<!would be )\b(?:exhausted|depleted)\b|\bminimum balance\b/i,
];

/** True for a refusal that lies in the call itself: it says nothing about any other. */
function liesInCall(status: number, names: readonly string[], text: string): boolean {
  const says = (sentences: readonly RegExp[]): boolean => sentences.some((pattern) => pattern.test(text));
  if (names.some((name) => callCodes.test(name)) || says(callSentences)) return true;
  const asksForMoney = status === 402 || names.includes('quota_exceeded');
  return asksForMoney && says(paidCallSentences) && !says(accountSentences);
}

/** What ends by itself: OpenRouter's `openrouter_in_flight_budget`, caps on calls at once. */
const laterWords =
  /\bin[- _]flight\b|in_flight|\bconcurren|\bsimultaneous|\btoo many (?:requests|calls)\b|\brate limit(?:ed)?\b/i;

/** What a spent account is told. */
const quotaWords =
  /balance|credits?\b|afford|usage|limit|[$€£¥] ?\d|billing|insufficient|funds|payment|\bpaid\b|purchase|quota|top(?:ped)?[- ]?up|recharge|subscri|overdue|suspend|budget|spend|\bplan\b|trial|\bcharges?\b|exhausted|depleted|upgrade|余额|余額|欠费|充值|额度|账户|残高/i;

/**
 * What a 402 says that does not lie in its call: it ends by itself (`rate`), the money is gone (`quota`), or none of these words is there
 * (`unclear`): then it has only its status, which asks for money.
 */
function paymentIn(names: readonly string[], text: string): Verdict {
  // The status in words adds nothing to it.
  const read = [...names.filter((name) => name !== 'payment_required'), text].join(' ');
  if (laterWords.test(read)) return 'rate';
  return text.trim() === '' || quotaWords.test(read) ? 'quota' : 'unclear';
}

// What providers say in words that only they use

/**
 * Error type (`null` = any) and sentence, the verdict that goes before that of codes and status, and the meter of a minute that refused.
 * `CONTRIBUTING.md` (recipe "A provider's dialect") names all that a new one needs.
 */
const providerWords: readonly (readonly [
  type: string | null,
  pattern: RegExp,
  verdict: Verdict,
  meter?: 'tokens' | 'requests',
])[] = [
  // Azure: the code of every 429 is `"429"`, and which of its two limits refused is stated by the sentence alone.
  [null, /\bexceeded token rate limit\b/, 'rate', 'tokens'],
  [null, /\bexceeded call rate limit\b/, 'rate', 'requests'],
  // Anthropic: money that is gone, or the customer's own limit, comes with a sentence.
  ['invalid_request_error', /^Your credit balance is too low to access the Anthropic API\b/, 'quota'],
  ['invalid_request_error', /^You have reached your specified (?:workspace )?API usage limits\b/, 'quota'],
  // Alibaba: `insufficient_quota` is also its code for the tokens of a minute; the address of the explanation tells which.
  [null, /\/error-code#token-limit/, 'rate', 'tokens'],
  // Together: the type both of a spent balance and of a rate limit that a paid plan would raise; the sentence tells which.
  ['credit_limit', /\brate limit/i, 'rate'],
  ['credit_limit', /^/, 'quota'],
  // xAI: a spent balance and a spending limit come as 429 with a sentence, like rate limits, and no code for them.
  [null, /\bhas either used all available credits or reached its monthly spending limit\b/, 'quota'],
];

/** What a refusal says in its provider's own words. */
function providerRefusal(error: ModelError | null): {
  readonly verdict?: Verdict;
  readonly message?: Partial<LimiterMessage>;
} {
  const { type, message } = error ?? { type: '', message: '' };
  const [, , verdict, meter] =
    providerWords.find(([of, pattern]) => (of === null || of === type) && pattern.test(message)) ?? [];
  if (verdict === undefined) return {};
  return { verdict, ...(meter === undefined ? {} : { message: { meter, windowMs: minuteMs } }) };
}

// The limiter's sentence

/** What a refusal's text states. Counts are units as written. */
export interface LimiterMessage {
  readonly meter: MeterName | null;
  /** Of the meter. */
  readonly windowMs: number;
  readonly limit: number | null;
  readonly used: number | null;
  readonly requested: number | null;
  /** "Request too large": no wait will make it fit. */
  readonly tooLarge: boolean;
  readonly scope: QuotaScope;
}

/** The meters that sentences name, of a minute and of a day. */
const meters: Readonly<Record<string, readonly [MeterName, (MeterName | null)?]>> = {
  requests: ['requests', 'requests_day'],
  tokens: ['tokens', 'tokens_day'],
  'input tokens': ['input_tokens'],
  'output tokens': ['output_tokens'],
  'input-images': ['images'],
  images: ['images'],
};

const metricWords = /\bon ([a-z-]+(?: [a-z-]+)?) per (minute|min|day)\b/;

function readMessage(text: string): LimiterMessage {
  const message = text.slice(0, maxSentence);
  const find = (pattern: RegExp): string | undefined => pattern.exec(message)?.[1];
  const numberAfter = (pattern: RegExp): number | null => {
    const digits = find(pattern);
    return digits === undefined ? null : Number(digits.replaceAll(',', ''));
  };
  const [, what = '', window] = metricWords.exec(message) ?? [];
  const isDay = window === 'day';
  const limit = numberAfter(/\bLimit:? (\d[\d,]*)/);
  const requested = numberAfter(/\bRequested ~?(\d[\d,]*)/);
  return {
    meter: meters[what]?.[isDay ? 1 : 0] ?? null,
    windowMs: isDay ? dayMs : minuteMs,
    limit,
    used: numberAfter(/\bUsed (\d[\d,]*)/),
    requested,
    tooLarge:
      /\brequest too large\b/i.test(message) || (limit !== null && requested !== null && requested > limit),
    scope: given({
      organization: find(/\bin (?:project \S{1,100} )?organization `?([\w-]{1,100})/),
      project: find(/\bin project `?([\w-]{1,100})/),
      family: find(/\(for limit ([^)\s]{1,100})\)/),
    }),
  };
}
