/**
 * `sluice check --connect`: tries what the file names, Redis, origins and credentials, and says each result in words. Owns the
 * words. Shows names of the file, never a secret.
 */
import { systemClock, systemRandom } from '../clock.ts';
import type { OriginPattern, Settings, UpstreamCredential, UpstreamSettings } from '../config/settings.ts';
import { readOnce } from '../credentials/once.ts';
import { createEndpoint, tryOrigin } from '../dispatch/one-request.ts';
import { credentialFaultWords } from '../errors.ts';
import { tryRedis } from '../limiter/stores.ts';
import { originText } from '../config/origins.ts';

/** What came of a trial: a line that begins with whether it works. */
const ok = (text: string): string => `ok:     ${text}`;
const failed = (text: string): string => `${failure} ${text}`;
const failure = 'FAILED:';

/** Tries everything, one after the other. Resolves with a line for each, in the order of the file, and how many say that it does not work. */
export async function tryConnections(settings: Settings) {
  const lines = [...(await redisLines(settings))];
  for (const upstream of settings.upstreams.values())
    for (const origin of upstream.origins) {
      const at = `${upstream.name} ${originText(origin)}`;
      if (origin.wildcard) lines.push(ok(`${at}: not tried, each call names its own host`));
      else
        for (const { whose, credential } of credentialsOf(upstream, settings))
          lines.push(await trialLine(`${at}${whose}`, upstream, { origin: urlOf(origin), credential }));
    }
  return { lines, failures: lines.filter((line) => line.startsWith(failure)).length };
}

async function redisLines({ redis }: Settings): Promise<readonly string[]> {
  if (redis === null) return [];
  const trouble = await tryRedis(redis, { clock: systemClock, random: systemRandom });
  return [
    trouble === null ? ok('redis: can be used') : failed(`redis (${trouble.reason}): ${trouble.advice}`),
  ];
}

/** Credentials for an upstream, and whose each is, as a line says it; empty = the upstream's own. */
function credentialsOf({ name, credential }: UpstreamSettings, { workspaces }: Settings) {
  const ofWorkspaces = [...workspaces.values()].flatMap(({ id, credentials }) => {
    const own = credentials.get(name);
    return own === undefined ? [] : [{ whose: `, credential of workspace ${id}`, credential: own }];
  });
  return [{ whose: '', credential }, ...ofWorkspaces];
}

/** Reads or fetches the credential, and tries the origin with it. */
async function trialLine(
  at: string,
  upstream: UpstreamSettings,
  { origin, credential }: { readonly origin: string; readonly credential: UpstreamCredential | null },
): Promise<string> {
  const clock = systemClock;
  let injected = null;
  if (credential !== null) {
    const read = await readOnce(credential, upstream, { clock, send: createEndpoint({ clock }) });
    if (read.kind === 'failed')
      return failed(`${at}: the credential is not available: ${credentialFaultWords[read.fault]}`);
    if (read.kind === 'unused')
      return ok(
        `${at}: not tried; the refresh token’s file can be read and replaced, and to use the token would end it`,
      );
    injected = { field: credential.field, value: read.value };
  }
  const result = await tryOrigin(upstream, { origin, credential: injected }, { clock });
  switch (result.kind) {
    case 'failed':
      return failed(`${at}: ${result.words}`);
    case 'refused':
      return failed(`${at}: answers ${result.status}: it refuses the credential`);
    case 'accepted':
      return ok(`${at}: answers ${result.status} and takes the credential`);
    case 'unclear':
      return ok(`${at}: answers ${result.status}; that does not show whether a credential is right`);
  }
}

const urlOf = ({ scheme, host, port }: OriginPattern): string => `${scheme}://${host}:${port}`;
