/** The request of the client credentials grant (RFC 6749 §4.4.2) or of a refresh token (§6), as a form or as JSON. */
import type { OAuthClient } from '../config/settings.ts';

export interface TokenRequest {
  readonly url: string;
  readonly fields: Readonly<Record<string, string>>;
  readonly body: string;
}

/**
 * Writes it; client id and secret stand in one place only (RFC 6749 §2.3).
 * @param refreshToken `null`: the client credentials grant
 */
export function tokenRequest(client: OAuthClient, refreshToken: string | null = null): TokenRequest {
  const { clientId, clientSecret, scope, format, clientAuth } = client;
  const words = {
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
    body: isForm ? new URLSearchParams(words).toString() : JSON.stringify(words),
  };
}

/** RFC 6749 §2.3.1: both are written as in a form before they are joined. */
function basic(clientId: string, clientSecret: string): string {
  const written = (text: string): string => new URLSearchParams({ '': text }).toString().slice(1);
  return `Basic ${btoa(`${written(clientId)}:${written(clientSecret)}`)}`;
}
