/**
 * The request to a token endpoint: a client credentials grant (RFC 6749 §4.4.2) or a refresh token (§6), as a form or as JSON. Pure.
 * Does not own: sending it (`token-fetcher.ts`), what the response means (`token-reply.policy.ts`).
 * Keeps: client id and secret stand in one place only, the body or `authorization` (RFC 6749 §2.3).
 */
import type { OAuthClient } from '../config/settings.ts';

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
