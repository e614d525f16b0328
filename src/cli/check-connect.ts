/**
 * `sluice check --connect`: tries what the file names, Redis, origins and credentials, and says each result in words. Owns the
 * words. Shows names of the file, never a secret.
 */
import { systemClock, systemRandom } from '../clock.ts';
import type { OriginPattern, Settings, UpstreamCredential, UpstreamSettings } from '../config/settings.ts';
import { readOnce } from '../credentials/once.ts';
import { createEndpoint, tryOrigin, type TrialResult } from '../dispatch/one-request.ts';
import { credentialFaultWords, type CredentialFault } from '../errors.ts';
import { tryRedis } from '../limiter/stores.ts';
import { originText } from '../config/origins.ts';

export interface ConnectionReport {
  /** One line each, in the order of the file. */
  readonly lines: readonly string[];
  /** How many of the lines report that something does not work. */
  readonly failures: number;
}

/** Tries everything, one after the other. */
export async function tryConnections(settings: Settings): Promise<ConnectionReport> {
  const results = [...(await redisResults(settings))];
  for (const upstream of settings.upstreams.values())
    results.push(...(await upstreamResults(upstream, settings)));
  return {
    lines: results.map(({ works, text }) => `${works ? 'ok:    ' : 'FAILED:'} ${text}`),
    failures: results.filter(({ works }) => !works).length,
  };
}

interface Result {
  readonly works: boolean;
  readonly text: string;
}

async function redisResults({ redis }: Settings): Promise<readonly Result[]> {
  if (redis === null) return [];
  const trouble = await tryRedis(redis, { clock: systemClock, random: systemRandom });
  if (trouble === null) return [{ works: true, text: 'redis: can be used' }];
  return [{ works: false, text: `redis (${trouble.reason}): ${trouble.advice}` }];
}

async function upstreamResults(upstream: UpstreamSettings, settings: Settings): Promise<readonly Result[]> {
  const results: Result[] = [];
  for (const origin of upstream.origins) {
    const at = `${upstream.name} ${originText(origin)}`;
    if (origin.wildcard) {
      results.push({ works: true, text: `${at}: not tried, each call names its own host` });
      continue;
    }
    for (const { whose, credential } of credentialsOf(upstream, settings))
      results.push(worded(`${at}${whose}`, await tryWith(upstream, urlOf(origin), credential)));
  }
  return results;
}

/** Reads or fetches the credential, and tries the origin with it. */
async function tryWith(
  upstream: UpstreamSettings,
  origin: string,
  credential: UpstreamCredential | null,
): Promise<TrialResult | CredentialUntried> {
  const clock = systemClock;
  if (credential === null) return tryOrigin(upstream, { origin, credential }, { clock });
  const read = await readOnce(credential, upstream, { clock, send: createEndpoint({ clock }) });
  if (read.kind === 'failed') return { kind: 'no_credential', fault: read.fault };
  if (read.kind === 'unused') return { kind: 'refresh_token_unused' };
  const injected = { field: credential.field, value: read.value };
  return tryOrigin(upstream, { origin, credential: injected }, { clock });
}

type CredentialUntried =
  | { readonly kind: 'no_credential'; readonly fault: CredentialFault }
  | { readonly kind: 'refresh_token_unused' };

interface Owned {
  /** Whose credential it is, as the line says it; empty = the upstream's own. */
  readonly whose: string;
  readonly credential: UpstreamCredential | null;
}

function credentialsOf({ name, credential }: UpstreamSettings, { workspaces }: Settings): Owned[] {
  const found: Owned[] = [{ whose: '', credential }];
  for (const { id, credentials } of workspaces.values()) {
    const own = credentials.get(name);
    if (own !== undefined) found.push({ whose: `, credential of workspace ${id}`, credential: own });
  }
  return found;
}

function worded(at: string, result: TrialResult | CredentialUntried): Result {
  switch (result.kind) {
    case 'no_credential':
      return {
        works: false,
        text: `${at}: the credential is not available: ${credentialFaultWords[result.fault]}`,
      };
    case 'refresh_token_unused':
      return {
        works: true,
        text: `${at}: not tried; the refresh token’s file can be read and replaced, and to use the token would end it`,
      };
    case 'failed':
      return { works: false, text: `${at}: ${result.words}` };
    case 'refused':
      return { works: false, text: `${at}: answers ${result.status}: it refuses the credential` };
    case 'accepted':
      return { works: true, text: `${at}: answers ${result.status} and takes the credential` };
    case 'unclear':
      return {
        works: true,
        text: `${at}: answers ${result.status}; that does not show whether a credential is right`,
      };
  }
}

const urlOf = ({ scheme, host, port }: OriginPattern): string => `${scheme}://${host}:${port}`;
