/**
 * Anthropic: fields of its own, and money that is gone as 400 `invalid_request_error`, which says nothing but its sentence.
 * Spend caps: `enforced_spend_limit_reached` in `model-error.policy.ts`.
 */
import { count, reset, type Reading } from '../reading.policy.ts';
import type { Provider, ReadsFields, ReadsRefusal } from './provider.policy.ts';

const moneyIsGone = /^Your credit balance is too low to access the Anthropic API\b/;
/** A limit that the customer has set for itself. */
const ownLimit = /^You have reached your specified (?:workspace )?API usage limits\b/;

const refusal: ReadsRefusal = ({ type, message }) =>
  type === 'invalid_request_error' && (moneyIsGone.test(message) || ownLimit.test(message))
    ? { verdict: 'quota' }
    : null;

const anthropicDimensions = [
  ['requests', 'requests', 1],
  ['tokens', 'tokens', 1000],
  ['input-tokens', 'input_tokens', 1000],
  ['output-tokens', 'output_tokens', 1000],
] as const;

/** `anthropic-ratelimit-{dimension}-{limit,remaining,reset}`: per minute, tokens rounded to thousands, RFC 3339 resets. */
const fields: ReadsFields = (answered, at) => {
  const readings: Reading[] = [];
  const limitOf = (name: string): number | null => count(answered.get(`anthropic-ratelimit-${name}-limit`));
  for (const [name, meter, remainingGrain] of anthropicDimensions) {
    const limit = limitOf(name);
    const until = reset(answered.get(`anthropic-ratelimit-${name}-reset`), at);
    if (limit === null && until.resetInMs === null) continue;
    readings.push({
      dimension: name,
      meter:
        name === 'tokens' && repeats(limit, limitOf('input-tokens'), limitOf('output-tokens')) ? null : meter,
      limit,
      remaining: count(answered.get(`anthropic-ratelimit-${name}-remaining`)),
      ...until,
      resetMeans: 'full',
      remainingGrain,
      statedWindowMs: 60_000,
    });
  }
  return readings;
};

/**
 * The plain token fields show the tightest limit in force. It is a limit of its own (a workspace's, for all tokens) only where it
 * is none of the others, nor their sum.
 */
const repeats = (limit: number | null, input: number | null, output: number | null): boolean =>
  limit !== null && (limit === input || limit === output || limit === (input ?? 0) + (output ?? 0));

export const anthropic: Provider = { refusal, fields };
