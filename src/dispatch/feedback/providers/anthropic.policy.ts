/**
 * Anthropic: money that is gone comes as 400 `invalid_request_error`, which says nothing but its sentence.
 * Fields: `model-fields.policy.ts`; spend caps: `enforced_spend_limit_reached` in `model-error.policy.ts`.
 */
import type { ReadsRefusal } from './provider.policy.ts';

const moneyIsGone = /^Your credit balance is too low to access the Anthropic API\b/;
/** A limit that the customer has set for itself. */
const ownLimit = /^You have reached your specified (?:workspace )?API usage limits\b/;

export const anthropic: ReadsRefusal = ({ type, message }) =>
  type === 'invalid_request_error' && (moneyIsGone.test(message) || ownLimit.test(message))
    ? { verdict: 'quota' }
    : null;
