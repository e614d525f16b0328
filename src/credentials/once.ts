/**
 * The value of a credential, read or fetched once and not kept: for `sluice check --connect`. Keeps: no refresh token is used, because
 * that would end it.
 */
import { systemRandom, type Clock } from '../clock.ts';
import type { UpstreamCredential, UpstreamSettings } from '../config/settings.ts';
import type { CredentialFault } from '../errors.ts';
import { readCredential } from './file-source.ts';
import { canReplace, readTokenFile, usableAccess } from './refresh/token-file.ts';
import { createTokenFetcher, type SendTokenRequest } from './token-fetcher.ts';

export type OnceRead =
  | { readonly kind: 'value'; readonly value: string }
  /** The file has a refresh token and could be replaced; it has no access token that is still valid. */
  | { readonly kind: 'unused' }
  | { readonly kind: 'failed'; readonly fault: CredentialFault };

export interface OnceParts {
  readonly clock: Clock;
  readonly send: SendTokenRequest;
}

export async function readOnce(
  { source }: UpstreamCredential,
  upstream: UpstreamSettings,
  { clock, send }: OnceParts,
): Promise<OnceRead> {
  switch (source.kind) {
    case 'value':
      return source;
    case 'file': {
      const reading = await readCredential(source.path);
      return reading.kind === 'failed' ? reading : { kind: 'value', value: source.prefix + reading.text };
    }
    case 'oauth': {
      const { refreshTokenFile } = source.client;
      if (refreshTokenFile !== null) return readStored(refreshTokenFile, source.prefix, clock);
      const { signal } = new AbortController();
      const fetch = createTokenFetcher({ clock, send });
      const fetched = await fetch({ client: source.client, upstream, unwanted: null, signal });
      return fetched.kind === 'failed' ? fetched : { kind: 'value', value: source.prefix + fetched.token };
    }
  }
}

async function readStored(path: string, prefix: string, clock: Clock): Promise<OnceRead> {
  const seen = await readTokenFile(path);
  if (seen.kind === 'failed') return seen;
  if (!(await canReplace(seen, systemRandom.hex(8)))) return { kind: 'failed', fault: 'unwritable' };
  const found = usableAccess(seen.stored, null, { now: clock.now(), monotonic: clock.monotonic() });
  return found === null ? { kind: 'unused' } : { kind: 'value', value: prefix + found.token };
}
