/**
 * Builds the credentials of one process, and starts to fetch the tokens that its upstreams need: by a refresh token or at the token
 * endpoint, and before both, with Redis, from the tokens that all replicas share.
 */
import type { Settings } from '../config/settings.ts';
import type { CreateMap } from '../replicated/shared-map.ts';
import { Credentials, SourceNames, type CredentialParts } from './credentials.ts';
import { RefreshGrants } from './refresh/refresh-grant.ts';
import { SharedTokens, type SharedToken } from './shared-tokens.ts';
import { createTokenFetcher, type SendTokenRequest } from './token-fetcher.ts';

export interface StartParts extends Pick<CredentialParts, 'clock' | 'random' | 'telemetry'> {
  readonly settings: Settings;
  readonly send: SendTokenRequest;
  /** `null` = there are no other replicas. */
  readonly createMap: CreateMap | null;
}

/** Closing what this returns ends the fetching and the files of refresh tokens. */
export function startCredentials({ settings, send, createMap, ...parts }: StartParts): Credentials {
  const { clock, random } = parts;
  const { labelKey } = settings.privacy;
  const refreshGrants = new RefreshGrants({ ...parts, send });
  const fetch = refreshGrants.fetcher(createTokenFetcher({ clock, send }));
  // Redis reports nothing before this function has returned, so that `credentials` is there.
  const map = createMap?.<SharedToken>({
    name: 'token.2',
    onChange: (name, { value }) => credentials.changedElsewhere(name, value),
  });
  const shared = map === undefined ? null : new SharedTokens({ clock, random, labelKey, map, fetch });
  const credentials: Credentials = new Credentials({ ...parts, labelKey, fetch, shared, refreshGrants });
  credentials.reload(settings.upstreams, new SourceNames(settings.upstreams));
  return credentials;
}
