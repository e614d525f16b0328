/**
 * Refusals of a language-model API.
 *
 * Owns: status, fields and body of each refusal, per dialect. Does not own: whether to refuse (`decide.ts`).
 */
import type { ReplyHeaders } from '../exchange.ts';
import { retryFields } from './fields.ts';
import type { Meter } from './meters.ts';
import type { LanguageModelSettings, QuotaState } from './options.ts';
import {
  anthropicError,
  azureText,
  openaiError,
  quotaText,
  rateLimitText,
  tooLargeText,
  type Refusal,
} from './texts.ts';

export interface CallResponse {
  readonly status: number;
  readonly headers: ReplyHeaders;
  readonly body: unknown;
}

/** `refusal`: of the meter with the longest wait. `limits`: the limit fields at that instant. */
export function throttled(
  refusal: Refusal,
  meter: Meter,
  settings: LanguageModelSettings,
  limits: ReplyHeaders,
  requestId: string,
): CallResponse {
  const headers = { ...retryFields(refusal.waitMs, meter, settings), ...limits, ...ids(settings, requestId) };
  const type = meter.dimension === 'rpm' || meter.dimension === 'rpd' ? 'requests' : 'tokens';
  switch (settings.dialect) {
    case 'azure': {
      const message = azureText(refusal.dimension, Math.ceil(refusal.waitMs / 1000));
      return { status: 429, headers, body: { error: { code: '429', message } } };
    }
    case 'anthropic': {
      const message = `This request would exceed the rate limit of your organization (${refusal.org}) of ${refusal.limit} ${anthropicUnit(refusal)} per minute.`;
      return { status: 429, headers, body: anthropicError('rate_limit_error', message, requestId) };
    }
    case 'openai':
    case 'groq':
      return { status: 429, headers, body: openaiError(rateLimitText(refusal), type, 'rate_limit_exceeded') };
  }
}

function anthropicUnit({ dimension }: Refusal): string {
  return dimension === 'itpm' ? 'input tokens' : dimension === 'otpm' ? 'output tokens' : 'requests';
}

/** For a call that is larger than the limit and can never succeed: without retry fields, and without "Used" in the text. */
export function tooLarge(
  refusal: Refusal,
  settings: LanguageModelSettings,
  limits: ReplyHeaders,
  requestId: string,
): CallResponse {
  const headers = { ...limits, ...ids(settings, requestId) };
  const text = tooLargeText(refusal);
  if (settings.dialect === 'anthropic') {
    return { status: 429, headers, body: anthropicError('rate_limit_error', text, requestId) };
  }
  const status = settings.dialect === 'groq' ? 413 : 429;
  return { status, headers, body: openaiError(text, 'tokens', 'rate_limit_exceeded') };
}

/** For an account without credit: without limit fields and retry fields. */
export function outOfQuota(
  state: Exclude<QuotaState, 'ok'>,
  settings: LanguageModelSettings,
  requestId: string,
): CallResponse {
  const headers = ids(settings, requestId);
  if (settings.dialect === 'anthropic') {
    const details = { error_code: 'enforced_spend_limit_reached' };
    return {
      status: 429,
      headers,
      body: anthropicError('rate_limit_error', quotaText(state), requestId, details),
    };
  }
  return { status: 429, headers, body: openaiError(quotaText(state), 'insufficient_quota', state) };
}

export function overloaded(
  overload: NonNullable<LanguageModelSettings['overload']>,
  settings: LanguageModelSettings,
  requestId: string,
): CallResponse {
  const seconds = settings.overloadRetryAfterSeconds;
  const headers = {
    ...ids(settings, requestId),
    ...(seconds === null ? {} : { 'retry-after': String(seconds) }),
  };
  if (settings.dialect === 'anthropic') {
    return { status: 529, headers, body: anthropicError('overloaded_error', 'Overloaded', requestId) };
  }
  if (overload === 'slow_down') {
    return { status: 429, headers, body: openaiError('slow down', 'rate_limit_error', 'slow_down') };
  }
  const text = 'The server is currently overloaded with other requests.';
  return {
    status: 503,
    headers,
    body: openaiError(text, 'service_unavailable_error', 'server_is_overloaded'),
  };
}

/** For calls that are wrong in themselves, which are charged to no meter. */
export function rejected(
  status: 400 | 401 | 404,
  code: string,
  message: string,
  settings: LanguageModelSettings,
  requestId: string,
): CallResponse {
  const headers = ids(settings, requestId);
  const types = { 400: 'invalid_request_error', 401: 'authentication_error', 404: 'not_found_error' };
  if (settings.dialect === 'anthropic') {
    return { status, headers, body: anthropicError(types[status], message, requestId) };
  }
  if (settings.dialect === 'azure')
    return { status, headers, body: { error: { code: String(status), message } } };
  return { status, headers, body: openaiError(message, 'invalid_request_error', code) };
}

/** The request id in the dialect's own field. */
export function ids(settings: LanguageModelSettings, requestId: string): Record<string, string> {
  return { [settings.dialect === 'anthropic' ? 'request-id' : 'x-request-id']: requestId };
}
