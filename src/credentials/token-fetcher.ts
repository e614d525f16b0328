/**
 * Fetches a token from its endpoint: the request, the response's meaning, nothing of either in a failure.
 * Does not own: when (`oauth-source.ts`), and the way there (`send` of its parts).
 */
import type { Clock } from '../clock.ts';
import type { OAuthClient, UpstreamSettings } from '../config/settings.ts';
import type { CredentialFault } from '../errors.ts';
import type { Fetched } from './oauth-source.ts';
import { readToken, type TokenReply } from './token-reply.policy.ts';
import { tokenRequest, type TokenRequest } from './token-request.policy.ts';

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
