/**
 * The providers of language models: the fields in which each reports its limits, and refusals in words that only it uses.
 * `CONTRIBUTING.md` (recipe "A provider's dialect") names all that a new one needs. Where several providers know the form of a field
 * or of a refusal, the first in the list reads it.
 */
import type { ResponseTime } from '../stated-time.policy.ts';
import type { LimiterMessage, ModelError, Verdict } from './model-error.policy.ts';
import { count, reset, type Reading } from './reading.policy.ts';

/** The fields of one limit. */
interface LimitFields extends Pick<Reading, 'dimension' | 'meter' | 'resetMeans'> {
  readonly limit: string;
  readonly remaining: string;
  readonly reset: string;
  /** Field with the length of the window in seconds, where there is one. */
  readonly renewal?: string;
  /** Length of the window that is documented or that the names state, milliseconds; `null` = neither. */
  readonly windowMs: number | null;
  /** Responses may state the reset alone. Of others, those without a limit say nothing of it. */
  readonly mayLackLimit?: true;
  /** Fields of limits which this one may repeat: where it is one of theirs or their sum, it has no meter. */
  readonly repeats?: readonly string[];
}

/** What a refusal says in words that only its provider uses. */
interface ProviderRefusal {
  /** The verdict, which then goes before that of codes and status. Absent: codes and status decide. */
  readonly verdict?: Verdict;
  /** Members that the common grammar of sentences does not find. */
  readonly message?: Partial<LimiterMessage>;
}

interface Provider {
  /** Limits in fields of the form that OpenAI began and many follow. */
  readonly common?: readonly LimitFields[];
  /** Limits in fields of its own form. */
  readonly own?: readonly LimitFields[];
  /** Reads a refusal; `null`: the refusal is not this provider's, or the common reading finds all that it says. */
  readonly refusal?: (error: ModelError) => ProviderRefusal | null;
}

const minuteMs = 60_000;
const hourMs = 3_600_000;
const dayMs = 86_400_000;

/** `x-ratelimit-{limit,remaining,reset}-{dimension}`, with Azure's `x-ratelimit-renewalperiod-{dimension}`. */
const common = (
  dimension: string,
  meter: Reading['meter'],
  resetMeans: Reading['resetMeans'] = 'all_free',
  windowMs: number | null = null,
): LimitFields => ({
  dimension,
  meter,
  limit: `x-ratelimit-limit-${dimension}`,
  remaining: `x-ratelimit-remaining-${dimension}`,
  reset: `x-ratelimit-reset-${dimension}`,
  renewal: `x-ratelimit-renewalperiod-${dimension}`,
  resetMeans,
  windowMs,
});

/** `anthropic-ratelimit-{dimension}-{limit,remaining,reset}`: per minute, RFC 3339 resets. */
const ofAnthropic = (dimension: string, meter: Reading['meter']): LimitFields => ({
  dimension,
  meter,
  limit: `anthropic-ratelimit-${dimension}-limit`,
  remaining: `anthropic-ratelimit-${dimension}-remaining`,
  reset: `anthropic-ratelimit-${dimension}-reset`,
  resetMeans: 'all_free',
  windowMs: minuteMs,
  mayLackLimit: true,
});

/** Tokens of the running minute; the reset is the minute's end. */
const ofMistral = (limit: string, remaining: string): LimitFields => ({
  dimension: 'tokens',
  meter: 'tokens',
  limit,
  remaining,
  reset: 'ratelimitbysize-reset',
  resetMeans: 'window',
  windowMs: minuteMs,
});

/** What is said of a limit of tokens or, else, of requests. */
const said = (tokens: boolean, windowMs = minuteMs): Partial<LimiterMessage> => ({
  meter: tokens ? 'tokens' : 'requests',
  metric: tokens ? 'TPM' : 'RPM',
  windowMs,
});

export const providers: Readonly<Record<string, Provider>> = {
  /** A reset states when the bucket is full. `tokens_usage_based` repeats `tokens` with another reset, and is left out on purpose. */
  openai: {
    common: [
      common('requests', 'requests'),
      common('tokens', 'tokens'),
      common('project-tokens', 'tokens'),
      common('input-tokens', 'input_tokens', 'all_free', minuteMs),
      common('output-tokens', 'output_tokens', 'all_free', minuteMs),
      common('input-images', 'images'),
      common('images', 'images'),
    ],
  },
  /** Azure OpenAI: the code of every 429 is `"429"`, and which of its two limits refused is stated by the sentence alone. */
  azure: {
    refusal({ message }) {
      const which = /\bexceeded (token|call) rate limit\b/.exec(message)?.[1];
      return which === undefined ? null : { verdict: 'rate', message: said(which === 'token') };
    },
  },
  /** Seconds of audio have no meter: what a recording lasts is not known before it is sent. */
  groq: {
    common: [common('audio-seconds', null)],
    refusal({ message }) {
      const [, window, metric = 'audio-seconds'] =
        /\bon seconds of audio per (hour|day)(?: \(([A-Z]{2,5})\))?/.exec(message) ?? [];
      if (window === undefined) return null;
      return { message: { meter: null, metric, windowMs: window === 'day' ? dayMs : hourMs } };
    },
  },
  /** Its fields name their window, and a reset is the window's end. */
  cerebras: {
    common: [
      common('requests-minute', 'requests', 'window', minuteMs),
      common('tokens-minute', 'tokens', 'window', minuteMs),
      common('requests-day', 'requests', 'window', dayMs),
      common('tokens-day', 'tokens', 'window', dayMs),
    ],
  },
  /**
   * Tokens are rounded to thousands. Money that is gone, or the customer's own limit, comes as `invalid_request_error` with a sentence.
   * The plain token fields show the tightest limit in force, which is a limit of its own (a workspace's) only where it is no other's.
   */
  anthropic: {
    own: [
      ofAnthropic('requests', 'requests'),
      {
        ...ofAnthropic('tokens', 'tokens'),
        repeats: ['anthropic-ratelimit-input-tokens-limit', 'anthropic-ratelimit-output-tokens-limit'],
      },
      ofAnthropic('input-tokens', 'input_tokens'),
      ofAnthropic('output-tokens', 'output_tokens'),
    ],
    refusal: ({ type, message }) =>
      type === 'invalid_request_error' &&
      /^Your credit balance is too low to access the Anthropic API\b|^You have reached your specified (?:workspace )?API usage limits\b/.test(
        message,
      )
        ? { verdict: 'quota' }
        : null,
  },
  mistral: {
    common: [common('req-minute', 'requests', 'window', minuteMs)],
    own: [
      ofMistral('x-ratelimitbysize-limit-minute', 'x-ratelimitbysize-remaining-minute'),
      ofMistral('ratelimitbysize-limit', 'ratelimitbysize-remaining'),
    ],
  },
  /** Serverless models. */
  fireworks: {
    common: [
      common('tokens-prompt', 'input_tokens', 'all_free', minuteMs),
      common('tokens-generated', 'output_tokens', 'all_free', minuteMs),
    ],
  },
  /** `insufficient_quota` is also its code for the tokens of a minute; the address of the explanation tells which. */
  alibaba: {
    refusal: ({ message }) =>
      message.includes('/error-code#token-limit') ? { verdict: 'rate', message: said(true) } : null,
  },
  /** `credit_limit` is the type both of a spent balance and of a rate limit that a paid plan would raise; the sentence tells which. */
  together: {
    refusal({ type, message }) {
      if (type !== 'credit_limit') return null;
      const [, limit, what, window] =
        /\bYour rate limit is (\d{1,9}) (queries|requests|tokens) per (second|minute)\b/.exec(message) ?? [];
      if (limit === undefined) return { verdict: /\brate limited\b/i.test(message) ? 'rate' : 'quota' };
      const windowMs = window === 'second' ? 1_000 : minuteMs;
      return { verdict: 'rate', message: { ...said(what === 'tokens', windowMs), limit: Number(limit) } };
    },
  },
  /** A spent balance and a spending limit come as 429 with a sentence, like rate limits, and no code for them. */
  xai: {
    refusal: ({ message }) =>
      /\bhas either used all available credits or reached its monthly spending limit\b/.test(message)
        ? { verdict: 'quota' }
        : null,
  },
};

const all = Object.values(providers);
const forms = [
  all.flatMap((provider) => provider.common ?? []),
  ...all.map((provider) => provider.own ?? []),
];

/** What a refusal says in its provider's own words. */
export function providerRefusal(error: ModelError | null): ProviderRefusal {
  if (error === null) return {};
  for (const { refusal } of all) {
    const read = refusal?.(error) ?? null;
    if (read !== null) return read;
  }
  return {};
}

/** Every limit that a response's fields name, in the first form in which they name one. */
export function modelReadings(fields: ReadonlyMap<string, string>, at: ResponseTime): readonly Reading[] {
  for (const form of forms) {
    const readings = form.flatMap((named) => readingOf(named, fields, at));
    if (readings.length > 0) return readings;
  }
  return [];
}

function readingOf(
  named: LimitFields,
  fields: ReadonlyMap<string, string>,
  at: ResponseTime,
): readonly Reading[] {
  const { dimension, meter, resetMeans, windowMs, repeats = [] } = named;
  const limit = count(fields.get(named.limit));
  // Absent, or Azure's −1: nothing is stated.
  if (limit === null && !(named.mayLackLimit === true && fields.has(named.reset))) return [];
  const others = repeats.map((name) => count(fields.get(name)) ?? 0);
  const isRepeated =
    limit !== null && others.length > 0 && [...others, others.reduce((a, b) => a + b)].includes(limit);
  const renewal = named.renewal === undefined ? null : count(fields.get(named.renewal));
  return [
    {
      dimension,
      meter: isRepeated ? null : meter,
      limit,
      remaining: count(fields.get(named.remaining)),
      ...reset(fields.get(named.reset), at),
      resetMeans,
      statedWindowMs: renewal !== null && renewal > 0 ? renewal * 1000 : windowMs,
    },
  ];
}

/**
 * The renewal period of a response that is Azure's trap, milliseconds; `null`: it is none. In the trap tokens are exhausted with a
 * reset of 0, `retry-after: 1` and `retry-after-ms: 0`, while the real wait is up to the renewal period.
 */
export function renewalTrapMs(readings: readonly Reading[]): number | null {
  const trapped = readings
    .filter(
      ({ remaining, resetInMs, resetMeans }) =>
        remaining === 0 && resetInMs === 0 && resetMeans === 'all_free',
    )
    .map(({ statedWindowMs }) => statedWindowMs)
    .filter((windowMs) => windowMs !== null);
  return trapped.length === 0 ? null : Math.max(...trapped);
}
