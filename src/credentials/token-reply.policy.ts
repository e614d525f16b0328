/**
 * Reads what a token endpoint answers (RFC 6749 §5) and believes none of it: a token that cannot be sent, a life that is no
 * time, a page in the place of JSON are all `invalid`. Keeps: no text of the answer leaves but the tokens.
 */
import { retryAfterMs } from '../dispatch/retry-after.policy.ts';
import type { CredentialFault } from '../errors.ts';

export interface TokenReply {
  readonly status: number;
  /** Lower-case names. */
  readonly fields: ReadonlyMap<string, string>;
  readonly body: string;
}

export type ReadToken =
  | {
      readonly kind: 'token';
      readonly token: string;
      /** Life from the request on, milliseconds; `null` = not stated. */
      readonly lifeMs: number | null;
    }
  | {
      readonly kind: 'failed';
      readonly fault: CredentialFault;
      /** Wait that the endpoint named, milliseconds; `null` = none. */
      readonly statedMs: number | null;
    };

/** Longer tokens would not fit into a request's head. */
const maxTokenLength = 16_384;
/** A stated life longer than a year is not believed. Seconds. */
const maxLifeSeconds = 31_536_000;

/** Errors of RFC 6749 §5.2: the client or its grant is wrong, and asking again does not mend it. */
const refusals = new Set([
  'invalid_request',
  'invalid_client',
  'invalid_grant',
  'unauthorized_client',
  'unsupported_grant_type',
  'invalid_scope',
]);

/**
 * What the answer gives.
 * @param now milliseconds since the epoch, for a `Retry-After` that is a date
 * @param grant what was asked: an `invalid_grant` concerns a refresh token, and else the client
 */
export function readToken(
  { status, fields, body }: TokenReply,
  now: number,
  grant: 'client_credentials' | 'refresh_token' = 'client_credentials',
): ReadToken {
  const json = objectOf(body);
  if (status >= 200 && status < 300) return tokenOf(json);
  const failed = (fault: CredentialFault): ReadToken => ({
    kind: 'failed',
    fault,
    statedMs: retryAfterMs(fields, now),
  });
  if (status === 429 || status >= 500) return failed('throttled');
  const error = json?.['error'];
  if (grant === 'refresh_token' && error === 'invalid_grant') return failed('grant_ended');
  const isRefused = status === 401 || (typeof error === 'string' && refusals.has(error));
  return failed(isRefused ? 'refused' : 'invalid');
}

/**
 * The refresh token that replaces the one that was sent; `null` = that one stays (RFC 6749 §6). It counts also beside an access
 * token that cannot be used: the one before it may be worth nothing now.
 */
export function readRefreshToken({ status, body }: TokenReply): string | null {
  const token = status >= 200 && status < 300 ? objectOf(body)?.['refresh_token'] : null;
  return typeof token === 'string' && isRefreshToken(token) ? token : null;
}

/** True for a token that can be sent in a field. */
export const isAccessToken = (text: string): boolean =>
  text.length <= maxTokenLength && /^[!-~]+$/.test(text);

/** True for a refresh token (RFC 6749 §A.17) that is not longer than what is read of its file. */
export const isRefreshToken = (text: string): boolean =>
  text.length <= maxTokenLength && /^[ -~]+$/.test(text);

function tokenOf(json: Readonly<Record<string, unknown>> | null): ReadToken {
  const invalid: ReadToken = { kind: 'failed', fault: 'invalid', statedMs: null };
  const token = json?.['access_token'];
  if (typeof token !== 'string' || !isAccessToken(token)) return invalid;
  const expires = json?.['expires_in'];
  // Some endpoints write the number as a text.
  const seconds = typeof expires === 'string' && expires.trim() !== '' ? Number(expires) : expires;
  if (seconds === undefined || seconds === null) return { kind: 'token', token, lifeMs: null };
  if (typeof seconds !== 'number' || !Number.isFinite(seconds) || seconds <= 0) return invalid;
  return { kind: 'token', token, lifeMs: Math.min(seconds, maxLifeSeconds) * 1_000 };
}

/** The JSON object of a text; `null` = it is none. */
export function objectOf(text: string): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? { ...value } : null;
  } catch {
    return null;
  }
}
