/** `sluice check`: says whether a configuration can be used and what it means, without showing a secret. */
import { cautions } from '../config/cautions.ts';
import { ConfigError, loadSettings } from '../config/load.ts';
import type { OriginPattern, Settings, UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import type { CliIo } from './io.ts';

/** Runs the command. Exit code 0, or 1 with every problem on standard error. */
export async function runCheck({ config }: { readonly config: string }, io: CliIo): Promise<number> {
  try {
    const settings = loadSettings({ path: config, env: io.env });
    const warnings = cautions(settings, io.clock.now()).map((text) => `warning: ${text}`);
    io.out([`${config}: usable`, ...summary(settings), ...warnings].join('\n'));
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
