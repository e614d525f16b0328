/**
 * What is asked of a token endpoint (RFC 6749 §4.4.2, §6), and what its response means (§5). Every part of a response is checked: a token
 * that cannot be sent, a lifetime that is no positive number, or a page in the place of JSON makes it `invalid`. Pure but for the one request.
 * Keeps: of the response's text, nothing but the tokens is passed on, and nothing of either in a failure.
 */
import type { Clock } from '../clock.ts';
import type { OAuthClient, UpstreamSettings } from '../config/settings.ts';
import { retryAfterMs } from '../dispatch/stated-time.policy.ts';
import type { CredentialFault } from '../errors.ts';
import { wordsOf } from '../words.policy.ts';

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

export const noToken = (fault: CredentialFault, statedMs: number | null = null): NoToken => ({
  kind: 'failed',
  fault,
  statedMs,
});

/** Age from which a token of this life, milliseconds, is not sent any more: a call takes time to arrive. */
export const sendableForMs = (lifeMs: number): number => lifeMs - Math.min(lifeMs * 0.05, 5_000);

/** What one fetch brought. */
export type Fetched = FetchedToken | NoToken;
export interface FetchedToken extends Token {
  /** Monotonic milliseconds from which its life counts: no later than the endpoint counts it. */
  readonly issuedAt: number;
  /** Another replica fetched it. */
  readonly isShared: boolean;
}

/** A fetch of a token: by which client, for which upstream. */
export interface TokenFetch {
  readonly client: OAuthClient;
  readonly upstream: UpstreamSettings;
  /** The token in use, which ends or was refused: it must not come again. */
  readonly unwanted: string | null;
  readonly signal: AbortSignal;
}

/** Fetches a token. Never rejects but with a bug, and takes a bounded time. */
export type FetchToken = (input: TokenFetch) => Promise<Fetched>;

/** Sends one request to a token endpoint, over the addresses and authorities that are allowed for the upstream. */
export type SendTokenRequest = (
  request: ReturnType<typeof tokenRequest>,
  way: Pick<UpstreamSettings, 'allowPrivateAddresses' | 'caFile'>,
  signal: AbortSignal,
) => Promise<TokenReply | NoToken>;

export interface TokenReply {
  readonly kind: 'answered';
  readonly status: number;
  /** Lower-case names; repeats joined. */
  readonly fields: ReadonlyMap<string, string>;
  readonly body: string;
}

/**
 * Asks the endpoint for a token.
 * @param refreshToken `null` = by the client credentials grant
 * @returns the token, or why there is none, and the refresh token that replaces the one that was sent; `null` = that one stays
 */
export async function askForToken(
  { clock, send }: { readonly clock: Clock; readonly send: SendTokenRequest },
  { client, upstream, signal }: Omit<TokenFetch, 'unwanted'>,
  refreshToken: string | null = null,
): Promise<{ readonly fetched: Fetched; readonly next: string | null }> {
  // The endpoint cannot count the token's life from before it was asked.
  const issuedAt = clock.monotonic();
  const reply = await send(tokenRequest(client, refreshToken), upstream, signal);
  if (reply.kind === 'failed') return { fetched: reply, next: null };
  const read = readToken(reply, clock.now(), refreshToken !== null);
  const fetched = read.kind === 'failed' ? read : { ...read, issuedAt, isShared: false };
  return { fetched, next: readRefreshToken(reply) };
}

/**
 * The request of a client, as a form or as JSON. Client id and secret stand in one place only, the body or `authorization` (§2.3).
 * @param refreshToken `null` = request a client credentials grant
 */
export function tokenRequest(client: OAuthClient, refreshToken: string | null = null) {
  const { clientId, clientSecret, scope, format, clientAuth } = client;
  const parameters = {
    ...(refreshToken === null
      ? { grant_type: 'client_credentials' }
      : { grant_type: 'refresh_token', refresh_token: refreshToken }),
    ...(clientAuth === 'body' ? { client_id: clientId, client_secret: clientSecret } : {}),
    ...(scope === null ? {} : { scope }),
  };
  const isForm = format === 'form';
  // RFC 6749 §2.3.1: client id and secret are form-encoded before they are joined.
  const formEncoded = (text: string): string => new URLSearchParams({ '': text }).toString().slice(1);
  const basic = `Basic ${btoa(`${formEncoded(clientId)}:${formEncoded(clientSecret)}`)}`;
  const fields: Readonly<Record<string, string>> = {
    accept: 'application/json',
    'content-type': isForm ? 'application/x-www-form-urlencoded' : 'application/json',
    ...(clientAuth === 'basic' ? { authorization: basic } : {}),
  };
  return {
    url: client.tokenUrl,
    fields,
    body: isForm ? new URLSearchParams(parameters).toString() : JSON.stringify(parameters),
  };
}

/** Longer tokens would not fit into a request's head. Characters. */
const maxTokenLength = 16_384;
/** A longer stated lifetime, above a year, counts as this one. Seconds. */
const maxLifeSeconds = 31_536_000;

/** Errors of RFC 6749 §5.2: the client or its grant is wrong, and the same request again would fail, too. */
const refusalErrors: readonly unknown[] = wordsOf(
  'invalid_request invalid_client invalid_grant unauthorized_client unsupported_grant_type invalid_scope',
);

/**
 * The token of a response, or why there is none.
 * @param now milliseconds since the epoch, for a `Retry-After` that is a date
 * @param isRefresh a refresh token was sent: then `invalid_grant` means that it has ended (`grant_ended`), otherwise that the client is
 * refused (`refused`)
 */
export function readToken(
  { status, fields, body }: Omit<TokenReply, 'kind'>,
  now: number,
  isRefresh = false,
): Token | NoToken {
  const { access_token: token, expires_in: expires, error } = objectOf(body) ?? {};
  if (status < 200 || status > 299) {
    const statedMs = retryAfterMs(fields, now);
    // Both say that the endpoint cannot answer now.
    if (status === 429 || status >= 500) return noToken('throttled', statedMs);
    if (isRefresh && error === 'invalid_grant') return noToken('grant_ended', statedMs);
    return noToken(status === 401 || refusalErrors.includes(error) ? 'refused' : 'invalid', statedMs);
  }
  if (!isAccessToken(token)) return noToken('invalid');
  if (expires === undefined || expires === null) return { kind: 'token', token, lifeMs: null };
  // Some endpoints write the number as a string.
  const seconds = typeof expires === 'string' ? Number(expires) : expires;
  if (typeof seconds !== 'number' || !Number.isFinite(seconds) || seconds <= 0) return noToken('invalid');
  return { kind: 'token', token, lifeMs: Math.min(seconds, maxLifeSeconds) * 1_000 };
}

/**
 * The refresh token that replaces the one that was sent; `null` = the one that was sent stays (RFC 6749 §6). A new refresh token
 * counts even if the access token beside it cannot be used, because the endpoint may have ended the former one.
 */
function readRefreshToken({ status, body }: TokenReply): string | null {
  const token = status >= 200 && status < 300 ? objectOf(body)?.['refresh_token'] : null;
  return isRefreshToken(token) ? token : null;
}

/** True for an access token that can be sent in a field. */
const isAccessToken = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= maxTokenLength && /^[!-~]+$/.test(value);

/** True for a refresh token (RFC 6749 §A.17) that is not longer than what is read of its file. */
export const isRefreshToken = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= maxTokenLength && /^[ -~]+$/.test(value);

/** The JSON object that a text holds; `null` = the text is no JSON, or holds something else (an array, too). */
export function objectOf(text: string): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : null;
  } catch {
    return null;
  }
}
