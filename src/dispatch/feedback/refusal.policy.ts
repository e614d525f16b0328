/**
 * What a refusal of a language model means: its codes, its provider's own words, and the limiter's sentence in the grammar of OpenAI and
 * Groq, as tables.
 *
 * Invariants: `error.code` decides, then `error.type`, never wording such as "billing" (texts of retryable refusals mention it) and never
 * the status alone. Linear, bounded, never throws; a number that is not in the text is `null`; the first line of a table that fits decides.
 */
import type { MeterName, QuotaScope } from '../../call.ts';
import { meaningOfWords, wordsOf } from '../../words.policy.ts';
import { given, isRecord, recordAt, stringAt, type JsonRecord } from './json.policy.ts';
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

// What providers say in words that only they use

/** What is said of a limit of tokens or, else, of requests. */
const limitOf = (isTokens: boolean, windowMs = 60_000): Partial<LimiterMessage> => ({
  meter: isTokens ? 'tokens' : 'requests',
  metric: isTokens ? 'TPM' : 'RPM',
  windowMs,
});

/** What a refusal says: the verdict, which goes before that of codes and status, and what the common grammar of sentences does not find. */
interface ProviderRefusal {
  readonly verdict?: Verdict;
  readonly message?: Partial<LimiterMessage>;
}

/** `type`: absent = any. `means`: may look into what the pattern found. */
interface ProviderWords {
  readonly type?: string;
  readonly pattern: RegExp;
  readonly means: (...found: readonly (string | undefined)[]) => ProviderRefusal;
}

const isSpent = (): ProviderRefusal => ({ verdict: 'quota' });

/** By provider; `CONTRIBUTING.md` (recipe "A provider's dialect") names all that a new one needs. */
export const providers: Readonly<Record<string, readonly ProviderWords[]>> = {
  openai: [],
  // The code of every 429 is `"429"`, and which of its two limits refused is stated by the sentence alone.
  azure: [
    {
      pattern: /\bexceeded (token|call) rate limit\b/,
      means: (which) => ({ verdict: 'rate', message: limitOf(which === 'token') }),
    },
  ],
  groq: [
    {
      pattern: /\bon seconds of audio per (hour|day)(?: \(([A-Z]{2,5})\))?/,
      means: (window, metric = 'audio-seconds') => ({
        message: { meter: null, metric, windowMs: window === 'day' ? 86_400_000 : 3_600_000 },
      }),
    },
  ],
  cerebras: [],
  // Money that is gone, or the customer's own limit, comes with a sentence.
  anthropic: [
    {
      type: 'invalid_request_error',
      pattern:
        /^Your credit balance is too low to access the Anthropic API\b|^You have reached your specified (?:workspace )?API usage limits\b/,
      means: isSpent,
    },
  ],
  mistral: [],
  fireworks: [],
  // `insufficient_quota` is also its code for the tokens of a minute; the address of the explanation tells which.
  alibaba: [
    { pattern: /\/error-code#token-limit/, means: () => ({ verdict: 'rate', message: limitOf(true) }) },
  ],
  // The type both of a spent balance and of a rate limit that a paid plan would raise; the sentence tells which.
  together: [
    {
      type: 'credit_limit',
      pattern: /\bYour rate limit is (\d{1,9}) (queries|requests|tokens) per (second|minute)\b/,
      means: (limit, what, window) => ({
        verdict: 'rate',
        message: {
          ...limitOf(what === 'tokens', window === 'second' ? 1_000 : 60_000),
          limit: Number(limit),
        },
      }),
    },
    { type: 'credit_limit', pattern: /\brate limited\b/i, means: () => ({ verdict: 'rate' }) },
    { type: 'credit_limit', pattern: /^/, means: isSpent },
  ],
  // A spent balance and a spending limit come as 429 with a sentence, like rate limits, and no code for them.
  xai: [
    {
      pattern: /\bhas either used all available credits or reached its monthly spending limit\b/,
      means: isSpent,
    },
  ],
};
const ownWords = Object.values(providers).flat();

/** What a refusal says in its provider's own words. */
export function providerRefusal(error: ModelError | null): ProviderRefusal {
  for (const { type, pattern, means } of error === null ? [] : ownWords) {
    const found = type === undefined || type === error?.type ? pattern.exec(error?.message ?? '') : null;
    if (found !== null) return means(...found.slice(1));
  }
  return {};
}

// What a 402 means, and which refusals concern one call alone. A 402 may say that the account has no money, that this call asks for more than
// there is, or that too much of the money is bound in calls under way. The first concerns everybody who uses the credential, the second
// nobody else, the third ends by itself.

/** Codes and types of errors that lie in the call itself. */
const aloneCodes =
  /context_(?:length|window)|long_context|(?:request|prompt|input|body|payload|message|content)_too_(?:large|long)|above_max_length|max_(?:output_|completion_)?tokens|prompt_tokens_limit/;

/** Sentences of refusals with any status that lie in the call itself. None of them is written by a limiter of rates. */
const aloneInAnyStatus: readonly RegExp[] = [
  // Anthropic: "Extra usage is required for long context requests.", "The long context beta is not yet available for this subscription."
  /\b(?:required?|requires|available|enabled|included|upgrade|credits)\b[^.]{0,60}\blong[- ]context\b/i,
  /\blong[- ]context\b[^.]{0,60}\b(?:required?|requires|available|enabled|included|upgrade|credits)\b/i,
  // OpenAI and those that speak its form.
  /\bmaximum context length\b|\bcontext (?:length|window)\b[^.]{0,20}\bexceed/i,
  /\bexceeds?\b[^.]{0,30}\b(?:context (?:length|window|size|limit)|maximum (?:number of )?(?:input |prompt )?tokens)/i,
  /\b(?:prompt|input|request(?: entity| body)?|payload)\b(?: is)? too (?:large|long)\b/i,
];

/** What a call asks for, as far as less of it costs less. No plural of "request": fewer requests are other calls. */
const partOfCall =
  'tokens?|max_\\w+|prompt|context|input|output|request|message|text|characters|model|size|length|duration|seconds|resolution|quality|steps|frames|samples?|variants?|variations?|completions?|generations?|images?|pictures?|videos?|audio|files?|documents?|batch(?: size)?|n|num_\\w+';
/** One call, as providers name it. */
const thisCall =
  'th(?:is|e|at) (?:request|call|prompt|generation|completion|message|input|model|operation|action|image|picture|video|audio|context|job|task)|the (?:requested|specified|given) (?:number|amount|size|length|resolution|duration|model|output|tokens|images?)|(?:the|this) number of (?:tokens|images|pictures|characters)';
/** Characters of one sentence: the point of a number does not end it. */
const within = (n: number): string => `(?:[^.]|\\.(?=\\d)){0,${n}}`;
const words = (pattern: string): RegExp => new RegExp(pattern, 'i');

/** Sentences of a 402 that lie in the call itself. */
const aloneIn402: readonly RegExp[] = [
  // What asks for less of the call. OpenRouter: "This request requires more credits, or fewer max_tokens."
  words(
    `\\b(?:reduc(?:e|ing)|lower(?:ing)?|shorten(?:ing)?|decreas(?:e|ing)|trim|truncate|split|fewer|less|smaller|shorter|cheaper)\\b${within(30)}\\b(?:${partOfCall})\\b`,
  ),
  words(`\\blimit (?:the |your |its )?(?:${partOfCall})\\b`),
  words(
    `\\b(?:tokens|max_\\w+|prompt|context|input|output|request|n)\`? (?:is |are )?too (?:high|large|long|big|many)\\b`,
  ),
  /\b(?:can ?not|can't|can only|unable to|only) afford\b/i,
  // OpenRouter: "Prompt tokens limit exceeded: 50000 > 20000."
  /\b(?:prompt|input|output|completion|context)\b[^.]{0,30}\blimit\b[^.]{0,20}\bexceeded\b/i,
  // What compares the amount asked for with the one there is.
  // Stability: "… does not have enough balance to request this action (need 6.5 credits, have 2)"
  /\b(?:needs?|requires?|required|costs?|requested|requesting|asks? for|asked for|would (?:use|take|consume))\b[^.]{0,20}\d[^]{0,60}\b(?:have|has|had|left|remains?|remaining|available|covers?|covered|affordable|allows?|balance|only)\b/i,
  // ElevenLabs: "This request exceeds your quota. You have 12 credits remaining, while 120 credits are required for this request."
  /\b(?:have|has|had|left|remains?|remaining|available|covers?|balance)\b[^]{0,60}\d[^]{0,40}\b(?:needs?|requires?|required|requested|costs?|asks? for|asked for)\b/i,
  words(
    `\\b(?:estimated|expected|requested|maximum|this|the|request|call|generation)\\b${within(20)}\\b(?:cost|price|charge|amount|tokens|images)\\b${within(30)}\\b(?:exceeds?|(?:higher|more|larger|greater) than|above|beyond|not covered)\\b${within(40)}\\b(?:balance|credits|budget|funds|left|remaining|available|afford|covers?)\\b`,
  ),
  words(
    `\\b\\d[\\d,.]{0,12} (?:more|additional) \\w+${within(10)}\\b(?:to|for)\\b${within(25)}\\b(?:${thisCall})\\b`,
  ),
  /\b(?:this|your|the) (?:request|call|prompt|generation|completion|message|input|model|operation|image|video)\b[^.]{0,20}\b(?:requires?|costs?|needs?|would cost|would exceed|exceeds?|is too)\b/i,
  words(
    `\\b(?:required?|needed|enough|sufficient|insufficient|too (?:low|little|small)|(?:not|n't|cannot) cover)\\b${within(30)}(?:\\b(?:for|to \\w+)|(?<=cover)) (?:the (?:cost|price) of )?(?:${thisCall})\\b`,
  ),
];

/** The whole account is concerned, whatever the call asks for: there is nothing left, or less than any call needs. */
const wholeAccount: readonly RegExp[] = [
  /\b(?:afford|have|has|remaining|left|balance|available|covers?)\b(?: (?:is|of|only))?:? ?[$€£¥]? ?0+(?:\.0+)?(?![\d.]*\d)/i,
  /(?<![\d.,])0+(?:\.0+)? (?:credits?|tokens|usd|dollars)\b[^.]{0,20}\b(?:left|remaining|available)\b/i,
  /\bno (?:more |remaining |available )?(?:credits?|balance|funds|money)\b/i,
  /\b(?:balance|credits?|account|funds)\b[^.\d]{0,20}(?:\bnegative\b|\bempty\b|\bzero\b|[-−][$€£¥]?\d)/i,
  /\b(?:ran|run) out of\b|\bused up\b|(?<!would be )\b(?:exhausted|depleted)\b/i,
  /\bminimum (?:account )?(?:balance|deposit|top[- ]?up|credits?)\b/i,
];

/** What ends by itself: OpenRouter's `openrouter_in_flight_budget`, caps on calls at once. */
const laterWords =
  /\bin[- _]flight\b|in_flight|\bconcurren|\bsimultaneous|\btoo many (?:requests|calls)\b|\brate limit(?:ed)?\b/i;

/** What a spent account is told. */
const quotaWords =
  /balance|credits?\b|usage|\b(?:monthly|weekly|daily|hard|key|account|organization|project|workspace|team)(?:'s)? limit|[$€£¥] ?\d|\d ?(?:usd|eur|dollars)\b|billing|insufficient|funds|payment|\bpaid\b|pay[- ]as|purchase|quota|top(?:ped)?[- ]?up|recharge|refill|subscri|overdue|arrears|suspend|deactivat|budget|spend|prepa(?:id|y)|\bplan\b|trial|invoice|\bcharges?\b|money|allowance|exhausted|depleted|\bowed?\b|debt|upgrade|余额|余額|欠费|欠費|充值|额度|額度|账户|残高|クレジット/i;

export interface RefusalWords {
  readonly status: number;
  /** Codes and type, lower case. */
  readonly names: readonly string[];
  readonly text: string;
}

const isWholeAccount = (text: string): boolean => wholeAccount.some((pattern) => pattern.test(text));

/** True for a refusal that lies in the call itself: it says nothing about any other. */
export function concernsCallAlone({ status, names, text }: RefusalWords): boolean {
  if (names.some((name) => aloneCodes.test(name))) return true;
  const read = text.slice(0, maxSentence);
  if (aloneInAnyStatus.some((pattern) => pattern.test(read))) return true;
  const asksForMoney = status === 402 || names.includes('quota_exceeded');
  return asksForMoney && aloneIn402.some((pattern) => pattern.test(read)) && !isWholeAccount(read);
}

/**
 * What a 402 says, beyond what `concernsCallAlone` finds: it ends by itself (`rate`), the money is gone (`quota`), or none of these words is
 * there. One without a word has only its status, which asks for money.
 */
export function paymentIn({ names, text }: RefusalWords): Verdict {
  // The status in words adds nothing to it.
  const said = names.filter((name) => name !== 'payment_required');
  const read = [...said, text].join(' ').slice(0, maxSentence);
  if (laterWords.test(read)) return 'rate';
  const isSpent = text.trim() === '' || quotaWords.test(read) || isWholeAccount(read);
  return isSpent ? 'quota' : 'unclear';
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
  return given({
    organization: /\bin (?:project \S{1,100} )?organization `?([\w-]{1,100})/.exec(message)?.[1],
    project: /\bin project `?([\w-]{1,100})/.exec(message)?.[1],
    family: /\(for limit ([^)\s]{1,100})\)/.exec(message)?.[1],
  });
}
