/**
 * Fetches a token from its endpoint: the request, the response's meaning, nothing of either in a failure.
 * Does not own: when (`oauth-source.ts`), and the way there (`send` of its parts).
 */
import type { Clock } from '../clock.ts';
import type { OAuthClient, UpstreamSettings } from '../config/settings.ts';
import type { CredentialFault } from '../errors.ts';
import type { Fetched } from './oauth-source.ts';
import { readToken, type TokenReply } from './token-reply.policy.ts';

/** Sends one request to a token endpoint, over the addresses and authorities that are allowed for the upstream. */
export type SendTokenRequest = (
  request: TokenRequest,
  way: Pick<UpstreamSettings, 'allowPrivateAddresses' | 'caFile'>,
  signal: AbortSignal,
) => Promise<
  | { readonly kind: 'answered'; readonly reply: TokenReply }
  | { readonly kind: 'failed'; readonly fault: CredentialFault }
>;

/** A fetch of a token: by which client, for which upstream. */
export interface TokenFetch {
  readonly client: OAuthClient;
  readonly upstream: UpstreamSettings;
  /** The token in use, which ends or was refused. */
  readonly unwanted: string | null;
  readonly signal: AbortSignal;
}

/** Fetches a token at the endpoint of its client. Never rejects but with a bug, and takes a bounded time. */
export type FetchToken = (input: TokenFetch) => Promise<Fetched>;

export interface FetcherParts {
  readonly clock: Pick<Clock, 'now' | 'monotonic'>;
  readonly send: SendTokenRequest;
}

/** By the client credentials grant. */
export const createTokenFetcher =
  ({ clock, send }: FetcherParts): FetchToken =>
  async ({ client, upstream, signal }) => {
    // The endpoint cannot count the token's life from before it was asked.
    const issuedAt = clock.monotonic();
    const result = await send(tokenRequest(client), upstream, signal);
    if (result.kind === 'failed') return { kind: 'failed', fault: result.fault, statedMs: null };
    const read = readToken(result.reply, clock.now());
    return read.kind === 'failed' ? read : { ...read, issuedAt, isShared: false };
  };

// The request: a client credentials grant (RFC 6749 §4.4.2) or a refresh token (§6), as a form or as JSON. Client id and secret stand in one place
// only, the body or `authorization` (RFC 6749 §2.3).

export interface TokenRequest {
  readonly url: string;
  readonly fields: Readonly<Record<string, string>>;
  readonly body: string;
}

/**
 * Builds the request of a client.
 * @param refreshToken `null` = request a client credentials grant
 */
export function tokenRequest(client: OAuthClient, refreshToken: string | null = null): TokenRequest {
  const { clientId, clientSecret, scope, format, clientAuth } = client;
  const parameters = {
    ...(refreshToken === null
      ? { grant_type: 'client_credentials' }
      : { grant_type: 'refresh_token', refresh_token: refreshToken }),
    ...(clientAuth === 'body' ? { client_id: clientId, client_secret: clientSecret } : {}),
    ...(scope === null ? {} : { scope }),
  };
  const isForm = format === 'form';
  return {
    url: client.tokenUrl,
    fields: {
      accept: 'application/json',
      'content-type': isForm ? 'application/x-www-form-urlencoded' : 'application/json',
      ...(clientAuth === 'basic' ? { authorization: basic(clientId, clientSecret) } : {}),
    },
    body: isForm ? new URLSearchParams(parameters).toString() : JSON.stringify(parameters),
  };
}

/** RFC 6749 §2.3.1: client id and secret are form-encoded before they are joined. */
function basic(clientId: string, clientSecret: string): string {
  const formEncoded = (text: string): string => new URLSearchParams({ '': text }).toString().slice(1);
  return `Basic ${btoa(`${formEncoded(clientId)}:${formEncoded(clientSecret)}`)}`;
}
