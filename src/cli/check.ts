/** `sluice check`: says whether a configuration can be used and what it means, without showing a secret. */
import { configurationWarnings } from '../config/warnings.ts';
import { loadSettings } from '../config/load.ts';
import type { Settings, UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import { readOrSayWhy, type CliIo } from './io.ts';
import { originText } from '../config/origins.ts';
import { refreshFileWarnings } from './refresh-files.ts';

/**
 * Runs the command. Exit code 0, or 1 with every problem on standard error, or where a connection that was tried failed.
 * @param options `connect`: also tries Redis, origins and credentials; `against`: HAR file whose responses the descriptions must explain
 */
export async function runCheck(
  {
    config,
    connect,
    against,
  }: { readonly config: string; readonly connect: boolean; readonly against?: string | undefined },
  io: CliIo,
): Promise<number> {
  const settings = readOrSayWhy(() => loadSettings({ path: config, env: io.env }), io);
  if (settings === null) return 1;
  const warnings = [
    ...configurationWarnings(settings, io.clock.now()),
    ...(await refreshFileWarnings(settings)),
  ];
  io.out(
    [
      `${config}: usable`,
      ...summary(settings),
      ...warnings.map((text) => `warning: ${text}`),
      ...(connect ? [] : ['connections: not tried; with --connect Redis, origins and credentials are']),
    ].join('\n'),
  );
  let code = 0;
  if (against !== undefined) {
    const { checkAgainst } = await import('../../tools/learn/learn.ts');
    code = checkAgainst({ file: against, upstreams: settings.upstreams }, io);
  }
  if (!connect) return code;
  // Loads the drivers, which nothing else of this command needs.
  const { tryConnections } = await import('./check-connect.ts');
  const { lines, failures } = await tryConnections(settings);
  io.out(['connections:', ...lines.map((line) => `  ${line}`)].join('\n'));
  return failures === 0 ? code : 1;
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

function upstreamLine({ name, kind, mode, origins, credential, limits }: UpstreamSettings): string {
  const parts = [
    ...(mode === 'observe' ? ['observed: no limit holds a call'] : []),
    origins.map(originText).join(' '),
    credential === null ? "credential: the client's own" : `credential: ${credential.field}`,
    `ceiling: ${limits.requestsPerMinute ?? 'none'}/min ${limits.requestsPerDay ?? 'none'}/day`,
    ...(limits.maxInFlight === null ? [] : [`in flight: ${limits.maxInFlight}`]),
    ...(limits.maxInFlightTotal === null ? [] : [`in flight of all: ${limits.maxInFlightTotal}`]),
  ];
  return `  ${name} (${kind}): ${parts.join(', ')}`;
}

function workspaceLine(workspace: WorkspaceSettings): string {
  const { id, keys, upstreams, weight } = workspace;
  const ceilings = [
    ...[...workspace.requestsPerMinute].map(([name, limit]) => `${name} ${limit ?? 'none'}/min`),
    ...[...workspace.requestsPerDay].map(([name, limit]) => `${name} ${limit ?? 'none'}/day`),
  ];
  const parts = [
    keys.length === 1 ? '1 key' : `${keys.length} keys`,
    `may call: ${[...upstreams].join(' ')}`,
    ...(ceilings.length === 0 ? [] : [`own ceilings: ${ceilings.join(' ')}`]),
    ...(weight === 1 ? [] : [`weight: ${weight}`]),
  ];
  return `  ${id}: ${parts.join(', ')}`;
}
