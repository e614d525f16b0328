/**
 * The value of a credential, read or fetched once and not kept: for `sluice check --connect`. Keeps: no refresh token is used, because
 * that would end it.
 */
import { systemRandom, type Clock } from '../clock.ts';
import type { UpstreamCredential, UpstreamSettings } from '../config/settings.ts';
import type { CredentialFault } from '../errors.ts';
import { canReplace, readCredential, readTokenFile, usableAccess } from './token-file.ts';
import { clientCredentials, noToken, type Fetched, type SendTokenRequest } from './token-endpoint.ts';

export type OnceRead =
  | { readonly kind: 'value'; readonly value: string }
  /** The file has a refresh token and could be replaced; it has no access token that is still valid. */
  | { readonly kind: 'unused' }
  | { readonly kind: 'failed'; readonly fault: CredentialFault };

export async function readOnce(
  { source }: UpstreamCredential,
  upstream: UpstreamSettings,
  { clock, send }: { readonly clock: Clock; readonly send: SendTokenRequest },
): Promise<OnceRead> {
  if (source.kind === 'value') return source;
  const fetch = async (): Promise<Fetched | null> => {
    if (source.kind === 'file') return readCredential(source.path, clock);
    const { client } = source;
    const { signal } = new AbortController();
    if (client.refreshTokenFile === null)
      return clientCredentials(clock, send)({ client, upstream, unwanted: null, signal });
    const seen = await readTokenFile(client.refreshTokenFile);
    if (seen.kind === 'failed') return seen;
    if (!(await canReplace(seen, systemRandom.hex(8)))) return noToken('unwritable');
    return usableAccess(seen.stored, null, clock);
  };
  const read = await fetch();
  if (read === null) return { kind: 'unused' };
  return read.kind === 'failed' ? read : { kind: 'value', value: source.prefix + read.token };
}
