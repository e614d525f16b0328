/** `sluice check`: says whether a configuration can be used and what it means, without showing a secret. */
import { ConfigError, loadSettings } from '../config/load.ts';
import type { OriginPattern, Settings, UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import type { CliIo } from './io.ts';

/** Runs the command. Exit code 0, or 1 with every problem on standard error. */
export async function runCheck({ config }: { readonly config: string }, io: CliIo): Promise<number> {
  try {
    const settings = loadSettings({ path: config, env: io.env });
    io.out([`${config}: usable`, ...summary(settings), ...warnings(settings, io.clock.now())].join('\n'));
    return 0;
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    io.err(error.message);
    return 1;
  }
}

function summary({ server, redis, upstreams, workspaces }: Settings): string[] {
  const store =
    redis === null ? 'embedded, one process' : `Redis (${redis.mode}), when down: ${redis.whenDown}`;
  return [
    `data port:  ${server.host}:${server.port}`,
    `admin port: ${server.adminHost}:${server.adminPort}`,
    `limiter:    ${store}`,
    'upstreams:',
    ...[...upstreams.values()].map(upstreamLine),
    'workspaces:',
    ...[...workspaces.values()].map(workspaceLine),
  ];
}

function upstreamLine({ name, kind, origins, credential, limits }: UpstreamSettings): string {
  const parts = [
    origins.map(originText).join(' '),
    credential === null ? "credential: the client's own" : `credential: ${credential.field}`,
    `ceiling: ${limits.requestsPerMinute ?? 'none'}/min ${limits.requestsPerDay ?? 'none'}/day`,
    ...(limits.maxInFlight === null ? [] : [`in flight: ${limits.maxInFlight}`]),
  ];
  return `  ${name} (${kind}): ${parts.join(', ')}`;
}

/** An origin as it is written in the file. */
function originText({ scheme, host, wildcard, port }: OriginPattern): string {
  const usual = scheme === 'https' ? 443 : 80;
  return `${scheme}://${wildcard ? '*.' : ''}${host}${port === usual ? '' : `:${port}`}`;
}

function workspaceLine({
  id,
  keys,
  upstreams,
  requestsPerMinute,
  requestsPerDay,
  weight,
}: WorkspaceSettings): string {
  const ceilings = [
    ...[...requestsPerMinute].map(([name, limit]) => `${name} ${limit}/min`),
    ...[...requestsPerDay].map(([name, limit]) => `${name} ${limit}/day`),
  ];
  const parts = [
    keys.length === 1 ? '1 key' : `${keys.length} keys`,
    `may call: ${[...upstreams].join(' ')}`,
    ...(ceilings.length === 0 ? [] : [`own ceilings: ${ceilings.join(' ')}`]),
    ...(weight === 1 ? [] : [`weight: ${weight}`]),
  ];
  return `  ${id}: ${parts.join(', ')}`;
}

/** Things that work but are probably not meant. */
function warnings({ privacy, upstreams, workspaces }: Settings, now: number): string[] {
  const found: string[] = [];
  if (privacy.labelKeyGenerated === true) {
    found.push('privacy.labelKey is not set: workspace labels change with every start');
  }
  for (const { id, keys } of workspaces.values()) {
    const expired = keys.filter(({ expiresAt }) => expiresAt !== null && expiresAt <= now).length;
    if (expired > 0) found.push(`workspace ${id}: ${expired} of ${keys.length} keys expired`);
  }
  const injected = [
    ...[...upstreams.values()].map(({ name, credential }) => [`upstream ${name}`, credential] as const),
    ...[...workspaces.values()].flatMap(({ id, credentials }) =>
      [...credentials].map(
        ([name, credential]) => [`workspace ${id}, upstream ${name}`, credential] as const,
      ),
    ),
  ];
  for (const [place, credential] of injected) {
    if (credential?.field === 'authorization' && !credential.value.includes(' ')) {
      found.push(`${place}: the authorization value names no scheme; most upstreams want "Bearer …"`);
    }
  }
  return found.map((text) => `warning: ${text}`);
}
