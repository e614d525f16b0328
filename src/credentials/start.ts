/** Puts the credentials of one process together: the way to token endpoints, and with Redis that to the other replicas. */
import type { Settings } from '../config/settings.ts';
import { Credentials, SourceNames, type CredentialParts } from './credentials.ts';
import { RefreshGrants } from './refresh/refresh-grants.ts';
import { RedisTokens } from './redis-tokens.ts';
import { SharedTokens } from './shared-tokens.ts';
import { createTokenFetcher, type SendTokenRequest } from './token-fetcher.ts';
import type { Telemetry } from '../telemetry/events.ts';

export interface StartParts extends Pick<CredentialParts, 'clock' | 'random'> {
  readonly settings: Settings;
  readonly telemetry: Pick<Telemetry, 'credentialRenewal' | 'redisError' | 'log'>;
  readonly send: SendTokenRequest;
}

/** Begins to fetch what upstreams need; `close` of what it returns ends all of it. */
export function startCredentials({ settings, send, ...parts }: StartParts): Credentials {
  const { clock, random, telemetry } = parts;
  const { redis, privacy } = settings;
  const { labelKey } = privacy;
  const grants = new RefreshGrants({ clock, random, send, telemetry });
  const endpoint = grants.fetcher(createTokenFetcher({ clock, send }));
  const store =
    redis === null
      ? null
      : new RedisTokens({
          settings: redis,
          clock,
          random,
          onError: () => telemetry.redisError('other'),
          onStored: (name) => credentials.storedElsewhere(name),
          onRefused: (name, mark) => credentials.refusedElsewhere(name, mark),
        });
  const fetcher = store === null ? endpoint : new SharedTokens({ clock, labelKey, store, endpoint });
  const credentials: Credentials = new Credentials({
    ...parts,
    labelKey,
    fetcher,
    grants,
    onClose: () => store?.close(),
  });
  credentials.configure(settings.upstreams, new SourceNames(settings.upstreams));
  return credentials;
}
