/**
 * Builds the credentials of one process, and starts to fetch the tokens that its upstreams need: by a refresh token or at the token
 * endpoint, and before both, with Redis, from the tokens that all replicas share.
 */
import type { Settings } from '../config/settings.ts';
import { RedisMap } from '../replicated/redis-map.ts';
import type { SharedRedis } from '../replicated/shared-redis.ts';
import { Credentials, SourceNames, type CredentialParts } from './credentials.ts';
import { RefreshGrants } from './refresh/refresh-grant.ts';
import { SharedTokens, tokenCodec, type SharedToken } from './shared-tokens.ts';
import { createTokenFetcher, type SendTokenRequest } from './token-fetcher.ts';

export interface StartParts extends Pick<CredentialParts, 'clock' | 'random' | 'telemetry'> {
  readonly settings: Settings;
  readonly send: SendTokenRequest;
  /** `null` = there are no other replicas. */
  readonly redis: SharedRedis | null;
}

/** Closing what this returns ends the fetching and the files of refresh tokens. */
export function startCredentials({ settings, send, redis, ...parts }: StartParts): Credentials {
  const { clock, random } = parts;
  const { labelKey } = settings.privacy;
  const refreshGrants = new RefreshGrants({ ...parts, send });
  const fetch = refreshGrants.fetcher(createTokenFetcher({ clock, send }));
  const sharedOver = (shared: SharedRedis): SharedTokens => {
    // Redis reports nothing before this function has returned, so that `credentials` is there.
    const onChange = (name: string, value: SharedToken): void => credentials.changedElsewhere(name, value);
    const map = new RedisMap({ redis: shared, name: 'token.2', labelKey, codec: tokenCodec, onChange });
    return new SharedTokens({ clock, random, labelKey, map, fetch });
  };
  const shared = redis === null ? null : sharedOver(redis);
  const credentials: Credentials = new Credentials({ ...parts, labelKey, fetch, shared, refreshGrants });
  credentials.reload(settings.upstreams, new SourceNames(settings.upstreams));
  return credentials;
}
