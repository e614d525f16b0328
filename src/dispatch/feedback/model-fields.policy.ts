/**
 * Rate-limit fields of language-model providers, as readings.
 *
 * Owns: the field names of OpenAI, Azure OpenAI, GitHub Models, Groq, Cerebras, Mistral and Anthropic. Refuses to own:
 * arithmetic (`reading.policy.ts`) and bodies. Invariant: a dialect that is absent costs a few map look-ups, and
 * nothing malformed becomes a number.
 */
import type { AnswerTime } from '../duration.policy.ts';
import { count, reset, type Reading } from './reading.policy.ts';

type Fields = ReadonlyMap<string, string>;

interface Dimension {
  readonly name: string;
  readonly meter: Reading['meter'];
  /** What the reset means: OpenAI's tells when the bucket is full, Cerebras' when the window ends. */
  readonly resetMeans: Reading['resetMeans'];
  /** Window that the name itself states, milliseconds. */
  readonly windowMs: number | null;
}

const dimension = (
  name: string,
  meter: Reading['meter'],
  resetMeans: Reading['resetMeans'] = 'full',
  windowMs: number | null = null,
): Dimension => ({ name, meter, resetMeans, windowMs });

// `tokens_usage_based` repeats `tokens` with a reset of its own and is left out on purpose.
const openAiDimensions: readonly Dimension[] = [
  dimension('requests', 'requests'),
  dimension('tokens', 'tokens'),
  dimension('project-tokens', 'tokens'),
  dimension('input-tokens', 'input_tokens', 'full', 60_000),
  dimension('output-tokens', 'output_tokens', 'full', 60_000),
  dimension('input-images', 'images'),
  dimension('images', 'images'),
  dimension('audio-seconds', null), // Groq
  dimension('requests-minute', 'requests', 'window', 60_000),
  dimension('tokens-minute', 'tokens', 'window', 60_000),
  dimension('requests-day', 'requests', 'window', 86_400_000),
  dimension('tokens-day', 'tokens', 'window', 86_400_000),
];

/** `x-ratelimit-{limit,remaining,reset}-{dimension}`, with Azure's `x-ratelimit-renewalperiod-{dimension}` (seconds). */
function openAiReadings(fields: Fields, at: AnswerTime): readonly Reading[] {
  const readings: Reading[] = [];
  for (const { name, meter, resetMeans, windowMs } of openAiDimensions) {
    const limit = count(fields.get(`x-ratelimit-limit-${name}`));
    if (limit === null) continue; // absent, or Azure's −1: nothing is told
    const renewal = count(fields.get(`x-ratelimit-renewalperiod-${name}`));
    readings.push({
      dimension: name,
      meter,
      limit,
      remaining: count(fields.get(`x-ratelimit-remaining-${name}`)),
      ...reset(fields.get(`x-ratelimit-reset-${name}`), at),
      resetMeans,
      remainingGrain: 1,
      statedWindowMs: renewal !== null && renewal > 0 ? renewal * 1000 : windowMs,
    });
  }
  return readings;
}

const anthropicDimensions = [
  ['requests', 'requests', 1],
  ['tokens', 'tokens', 1000],
  ['input-tokens', 'input_tokens', 1000],
  ['output-tokens', 'output_tokens', 1000],
] as const;

/** `anthropic-ratelimit-{dimension}-{limit,remaining,reset}`: per minute, tokens rounded to thousands, RFC 3339 resets. */
function anthropicReadings(fields: Fields, at: AnswerTime): readonly Reading[] {
  const readings: Reading[] = [];
  const limitOf = (name: string): number | null => count(fields.get(`anthropic-ratelimit-${name}-limit`));
  for (const [name, meter, remainingGrain] of anthropicDimensions) {
    const limit = limitOf(name);
    const until = reset(fields.get(`anthropic-ratelimit-${name}-reset`), at);
    if (limit === null && until.resetInMs === null) continue;
    readings.push({
      dimension: name,
      meter:
        name === 'tokens' && repeats(limit, limitOf('input-tokens'), limitOf('output-tokens')) ? null : meter,
      limit,
      remaining: count(fields.get(`anthropic-ratelimit-${name}-remaining`)),
      ...until,
      resetMeans: 'full',
      remainingGrain,
      statedWindowMs: 60_000,
    });
  }
  return readings;
}

/**
 * The plain token fields show the tightest limit in force. It is a limit of its own (a workspace's, for all tokens) only where it
 * is none of the others, nor their sum.
 */
const repeats = (limit: number | null, input: number | null, output: number | null): boolean =>
  limit !== null && (limit === input || limit === output || limit === (input ?? 0) + (output ?? 0));

/** `ratelimitbysize-*` of Mistral: tokens of the running minute; the reset is the minute's end. */
function mistralReadings(fields: Fields, at: AnswerTime): readonly Reading[] {
  const limit = count(fields.get('x-ratelimitbysize-limit-minute') ?? fields.get('ratelimitbysize-limit'));
  if (limit === null) return [];
  return [
    {
      dimension: 'tokens',
      meter: 'tokens',
      limit,
      remaining: count(
        fields.get('x-ratelimitbysize-remaining-minute') ?? fields.get('ratelimitbysize-remaining'),
      ),
      ...reset(fields.get('ratelimitbysize-reset'), at),
      resetMeans: 'window',
      remainingGrain: 1,
      statedWindowMs: 60_000,
    },
  ];
}

/** Every limit that a language-model answer's fields name, in any known dialect. */
export function modelReadings(fields: Fields, at: AnswerTime): readonly Reading[] {
  const openAi = openAiReadings(fields, at);
  if (openAi.length > 0) return openAi;
  const anthropic = anthropicReadings(fields, at);
  return anthropic.length > 0 ? anthropic : mistralReadings(fields, at);
}

/**
 * Azure's trap: tokens exhausted with a reset of 0, `retry-after: 1` and `retry-after-ms: 0`, while the real wait is up
 * to the renewal period. That period in milliseconds, or `null` when the answer is not of this kind.
 */
export function renewalTrapMs(readings: readonly Reading[]): number | null {
  let waitMs: number | null = null;
  for (const { remaining, resetInMs, resetMeans, statedWindowMs } of readings) {
    if (remaining === 0 && resetInMs === 0 && resetMeans === 'full' && statedWindowMs !== null) {
      waitMs = Math.max(waitMs ?? 0, statedWindowMs);
    }
  }
  return waitMs;
}
