/**
 * The types and codes of providers' errors that Sluice repeats in a breaker's answers, so that clients that branch on them still do.
 * A closed set: whatever else an upstream writes stays with the upstream.
 */
import { wordsOf } from './words.policy.ts';

/** As most providers spell them, in lower case; others write the same in another case. Later ones are added here and nowhere else. */
const known: ReadonlySet<string> = new Set(
  wordsOf(
    // OpenAI, and those that speak its form
    'insufficient_quota credit_balance_exhausted organization_spend_limit_exceeded project_spend_limit_exceeded',
    'organization_usage_limit_exceeded billing_not_active billing_hard_limit_reached billing_limit_reached',
    'billing_limit_user_error account_deactivated access_terminated invalid_request_error rate_limit_exceeded',
    'rate_limit_error server_error tokens requests usage_limit_reached usage_limit_exceeded usage_not_included',
    'unknown_error',
    // Anthropic
    'billing_error enforced_spend_limit_reached permission_error authentication_error not_found_error',
    'overloaded_error api_error',
    // Google
    'resource_exhausted permission_denied failed_precondition unauthenticated billing_disabled consumer_suspended',
    // Together, Moonshot, ElevenLabs and Copilot, Mistral, Groq, OpenRouter and others
    'credit_limit credits_exhausted exceeded_current_quota_error engine_overloaded_error insufficient_balance',
    'insufficient_balance_error insufficient_credits insufficient_funds insufficientbalance payment_required',
    'payment_required_error quota_exceeded quota_limit_reached rate_limited blocked_api_access spend_limit_reached',
    'account_suspended invalid_api_key forbidden openrouter_in_flight_budget toomanyrequests too_many_requests',
    // Ark, Alibaba, Bedrock
    'accountoverdueerror setlimitexceeded quotaexceeded arrearage allocationquota.freetieronly',
    'throttling.allocationquota throttlingexception servicequotaexceededexception accessdeniedexception',
    'limitexceededexception',
    '1113 1308 1309 1310', // Zhipu: no balance; a used-up plan
  ),
);

/** A known word, in the case in which the provider wrote it: clients that branch on it expect that. */
export type ProviderWord = string;
/** A known word, or an HTTP status as some providers write it: as a number, or as text (`"402"`). */
export type ProviderCode = ProviderWord | number;

/** What a provider's own error says; `null` = nothing, or no known word. */
export interface ProviderError {
  readonly type: ProviderWord | null;
  readonly code: ProviderCode | null;
}

/** Longer values are no words. Characters. */
const maxLength = 64;

const wordOf = (value: unknown): ProviderWord | null => {
  if (typeof value !== 'string' || value.length > maxLength) return null;
  // The lower case of some other letters is ASCII (U+212A becomes "k"): those are not in the vocabulary.
  return /^[\w.-]+$/.test(value) && known.has(value.toLowerCase()) ? value : null;
};

const isStatus = (value: unknown): value is ProviderCode =>
  (typeof value === 'number' || typeof value === 'string') && /^[45]\d\d$/.test(String(value));

/** Of the type (or, as Google calls it, status) and the code of an error what is known; `null` = neither is. */
export function providerError(members: {
  readonly type: unknown;
  readonly code: unknown;
}): ProviderError | null {
  const type = wordOf(members.type);
  const code = isStatus(members.code) ? members.code : wordOf(members.code);
  return type === null && code === null ? null : { type, code };
}
