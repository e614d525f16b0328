/**
 * Builds the credentials of one process, and starts to fetch the tokens that its upstreams need.
 *
 * Owns: which fetcher is behind which: refresh grants before the token endpoint and, with Redis, tokens shared by all replicas before
 * both. Does not own: when a token is renewed (`oauth-source.ts`), what is said to an endpoint (`token-fetcher.ts`).
 */
import type { Settings } from '../config/settings.ts';
import { Credentials, SourceNames, type CredentialParts } from './credentials.ts';
import { RefreshGrants } from './refresh/refresh-grants.ts';
import { RedisTokens } from './redis-tokens.ts';
import { SharedTokens } from './shared-tokens.ts';
import { createTokenFetcher, type SendTokenRequest } from './token-fetcher.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';

export interface StartParts extends Pick<CredentialParts, 'clock' | 'random'> {
  readonly settings: Settings;
  readonly telemetry: Pick<Telemetry, 'credentialRenewal' | 'redisError' | 'log'>;
  readonly send: SendTokenRequest;
}

/** Closing what this returns ends the fetching, the files of refresh tokens and the connection to Redis. */
export function startCredentials({ settings, send, ...parts }: StartParts): Credentials {
  const { clock, random, telemetry } = parts;
  const { redis, privacy } = settings;
  const { labelKey } = privacy;
  const refreshGrants = new RefreshGrants({ clock, random, send, telemetry });
  const ownFetcher = refreshGrants.fetcher(createTokenFetcher({ clock, send }));
  const store =
    redis === null
      ? null
      : new RedisTokens({
          settings: redis,
          clock,
          random,
          onError: () => telemetry.redisError('other'),
          // Redis reports nothing before this function has returned, so that `credentials` is there.
          onStored: (name) => credentials.storedElsewhere(name),
          onRefused: (name, mark) => credentials.refusedElsewhere(name, mark),
        });
  const fetcher = store === null ? ownFetcher : new SharedTokens({ clock, labelKey, store, ownFetcher });
  const credentials: Credentials = new Credentials({
    ...parts,
    labelKey,
    fetcher,
    refreshGrants,
    onClose: () => store?.close(),
  });
  credentials.reload(settings.upstreams, new SourceNames(settings.upstreams));
  return credentials;
}
