/**
 * Reads the response of a token endpoint (RFC 6749 §5) and checks every part of it: a token that cannot be sent, a lifetime that is
 * no positive number, or a page in the place of JSON makes the response `invalid`.
 *
 * Does not own: what is asked (`token-fetcher.ts`), when it is asked again (`renewal.policy.ts`). Pure.
 * Keeps: of the response's text, nothing but the tokens is passed on.
 */
import { retryAfterMs } from '../dispatch/retry-after.policy.ts';
import type { CredentialFault } from '../errors.ts';

export interface TokenReply {
  readonly status: number;
  /** Lower-case names; repeats joined. */
  readonly fields: ReadonlyMap<string, string>;
  readonly body: string;
}

export interface Token {
  readonly kind: 'token';
  readonly token: string;
  /** Lifetime of the token from the request on, milliseconds; `null` = not stated. */
  readonly lifeMs: number | null;
}

export interface NoToken {
  readonly kind: 'failed';
  readonly fault: CredentialFault;
  /** Wait that the endpoint stated, milliseconds; `null` = none. */
  readonly statedMs: number | null;
}

/** Longer tokens would not fit into a request's head. Characters. */
const maxTokenLength = 16_384;
/** A longer stated lifetime, above a year, counts as this one. Seconds. */
const maxLifeSeconds = 31_536_000;

/** Errors of RFC 6749 §5.2: the client or its grant is wrong, and the same request again would fail, too. */
const refusalErrors = new Set([
  'invalid_request',
  'invalid_client',
  'invalid_grant',
  'unauthorized_client',
  'unsupported_grant_type',
  'invalid_scope',
]);

/**
 * The token of a response, or why there is none.
 * @param now milliseconds since the epoch, for a `Retry-After` that is a date
 * @param grant the grant type of the request. `invalid_grant` means that the refresh token has ended when one was sent
 * (`grant_ended`), otherwise that the client is refused (`refused`).
 */
export function readToken(
  { status, fields, body }: TokenReply,
  now: number,
  grant: 'client_credentials' | 'refresh_token' = 'client_credentials',
): Token | NoToken {
  const json = objectOf(body);
  if (status >= 200 && status < 300) return tokenOf(json);
  const failed = (fault: CredentialFault): NoToken => ({
    kind: 'failed',
    fault,
    statedMs: retryAfterMs(fields, now),
  });
  // Both say that the endpoint cannot answer now.
  if (status === 429 || status >= 500) return failed('throttled');
  const error = json?.['error'];
  if (grant === 'refresh_token' && error === 'invalid_grant') return failed('grant_ended');
  const isRefused = status === 401 || (typeof error === 'string' && refusalErrors.has(error));
  return failed(isRefused ? 'refused' : 'invalid');
}

/**
 * The refresh token that replaces the one that was sent; `null` = the one that was sent stays (RFC 6749 §6). A new refresh token
 * counts even if the access token beside it cannot be used, because the endpoint may have ended the former one.
 */
export function readRefreshToken({ status, body }: TokenReply): string | null {
  const token = status >= 200 && status < 300 ? objectOf(body)?.['refresh_token'] : null;
  return typeof token === 'string' && isRefreshToken(token) ? token : null;
}

/** True for an access token that can be sent in a field. */
export const isAccessToken = (text: string): boolean =>
  text.length <= maxTokenLength && /^[!-~]+$/.test(text);

/** True for a refresh token (RFC 6749 §A.17) that is not longer than what is read of its file. */
export const isRefreshToken = (text: string): boolean =>
  text.length <= maxTokenLength && /^[ -~]+$/.test(text);

function tokenOf(json: Readonly<Record<string, unknown>> | null): Token | NoToken {
  const invalid: NoToken = { kind: 'failed', fault: 'invalid', statedMs: null };
  const token = json?.['access_token'];
  if (typeof token !== 'string' || !isAccessToken(token)) return invalid;
  const expires = json?.['expires_in'];
  // Some endpoints write the number as a string.
  const seconds = typeof expires === 'string' && expires.trim() !== '' ? Number(expires) : expires;
  if (seconds === undefined || seconds === null) return { kind: 'token', token, lifeMs: null };
  if (typeof seconds !== 'number' || !Number.isFinite(seconds) || seconds <= 0) return invalid;
  return { kind: 'token', token, lifeMs: Math.min(seconds, maxLifeSeconds) * 1_000 };
}

/** The JSON object that a text holds; `null` = the text is no JSON, or holds something else (an array, too). */
export function objectOf(text: string): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : null;
  } catch {
    return null;
  }
}
