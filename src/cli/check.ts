/** `sluice check`: says whether a configuration can be used and what it means. Owns the words. Shows names of the file, never a secret. */
import { loadSettings } from '../config/load.ts';
import { originText } from '../config/origins.ts';
import type { Settings, UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import { configurationWarnings } from '../config/warnings.ts';
import { readOrSayWhy, type CliIo } from './io.ts';

/**
 * Runs the command. Exit code 0, or 1 with every problem on standard error.
 * @param options `against`: HAR file whose responses the descriptions must explain
 */
export async function runCheck(
  { config, against }: { readonly config: string; readonly against?: string | undefined },
  io: CliIo,
): Promise<number> {
  const settings = readOrSayWhy(() => loadSettings({ path: config, env: io.env }), io);
  if (settings === null) return 1;
  const warnings = configurationWarnings(settings, io.clock.now());
  const lines = [`${config}: usable`, ...summary(settings), ...warnings.map((text) => `warning: ${text}`)];
  io.out(lines.join('\n'));
  if (against === undefined) return 0;
  const { checkAgainst } = await import('../../tools/learn/learn.ts');
  return checkAgainst({ file: against, upstreams: settings.upstreams }, io);
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
  const { requestsPerMinute, requestsPerDay, maxInFlight } = limits;
  const parts = [
    origins.map(originText).join(' '),
    `credential: ${credential?.field ?? "the client's own"}`,
    `ceiling: ${requestsPerMinute ?? 'none'}/min ${requestsPerDay ?? 'none'}/day`,
    `in flight: ${maxInFlight ?? 'any number'}`,
    mode,
  ];
  return `  ${name} (${kind}): ${parts.join(', ')}`;
}

const workspaceLine = ({ id, keys, upstreams }: WorkspaceSettings): string =>
  `  ${id}: ${keys.length} ${keys.length === 1 ? 'key' : 'keys'}, may call: ${[...upstreams].join(' ')}`;
