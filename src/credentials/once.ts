/** The value of a credential, read or fetched once and not kept: for `sluice check --connect`. */
import type { Clock } from '../clock.ts';
import type { UpstreamCredential, UpstreamSettings } from '../config/settings.ts';
import type { CredentialFault } from '../errors.ts';
import { readCredential } from './file-source.ts';
import { createTokenFetcher, type SendTokenRequest } from './token-fetcher.ts';

export type OnceRead =
  | { readonly kind: 'value'; readonly value: string }
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
      const { signal } = new AbortController();
      const fetcher = createTokenFetcher({ clock, send });
      const fetched = await fetcher.fetch({ client: source.client, upstream, unwanted: null, signal });
      return fetched.kind === 'failed' ? fetched : { kind: 'value', value: source.prefix + fetched.token };
    }
  }
}
