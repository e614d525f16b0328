/**
 * Reads what a token endpoint answers (RFC 6749 §5) and believes none of it: a token that cannot be sent, a life that is no
 * time, a page in the place of JSON are all `invalid`. Keeps: no text of the answer leaves but the token.
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
/** A longer life is not believed: a year. */
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

/** @param now milliseconds since the epoch, for a `Retry-After` that is a date */
export function readToken({ status, fields, body }: TokenReply, now: number): ReadToken {
  const json = objectOf(body);
  if (status >= 200 && status < 300) return tokenOf(json);
  const failed = (fault: CredentialFault): ReadToken => ({
    kind: 'failed',
    fault,
    statedMs: retryAfterMs(fields, now),
  });
  if (status === 429 || status >= 500) return failed('throttled');
  const error = json?.['error'];
  const isRefused = status === 401 || (typeof error === 'string' && refusals.has(error));
  return failed(isRefused ? 'refused' : 'invalid');
}

function tokenOf(json: Readonly<Record<string, unknown>> | null): ReadToken {
  const invalid: ReadToken = { kind: 'failed', fault: 'invalid', statedMs: null };
  const token = json?.['access_token'];
  if (typeof token !== 'string' || token.length > maxTokenLength || !/^[!-~]+$/.test(token)) return invalid;
  const expires = json?.['expires_in'];
  // Some endpoints write the number as a text.
  const seconds = typeof expires === 'string' && expires.trim() !== '' ? Number(expires) : expires;
  if (seconds === undefined || seconds === null) return { kind: 'token', token, lifeMs: null };
  if (typeof seconds !== 'number' || !Number.isFinite(seconds) || seconds <= 0) return invalid;
  return { kind: 'token', token, lifeMs: Math.min(seconds, maxLifeSeconds) * 1_000 };
}

function objectOf(text: string): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? { ...value } : null;
  } catch {
    return null;
  }
}
