/**
 * `sluice check`: says whether a configuration can be used and what it means; with `--connect` also tries Redis, origins and credentials.
 * Owns the words. Shows names of the file, never a secret.
 */
import { systemClock, systemRandom } from '../clock.ts';
import { loadSettings } from '../config/load.ts';
import { originText } from '../config/origins.ts';
import type {
  Settings,
  UpstreamCredential,
  UpstreamSettings,
  WorkspaceSettings,
} from '../config/settings.ts';
import { configurationWarnings } from '../config/warnings.ts';
import { canReplace, readCredential, readTokenFile } from '../credentials/token-file.ts';
import { clientCredentials, noToken, type Fetched } from '../credentials/token-endpoint.ts';
import { createEndpoint, tryOrigin } from '../dispatch/one-request.ts';
import { credentialFaultWords } from '../errors.ts';
import { tryRedis } from '../limiter/stores.ts';
import { readOrSayWhy, type CliIo } from './io.ts';

/**
 * Runs the command. Exit code 0, or 1 with every problem on standard error, or where a connection that was tried failed.
 * @param options `connect`: also tries Redis, origins and credentials; `against`: HAR file whose responses the descriptions must explain
 */
export async function runCheck(
  options: { readonly config: string; readonly connect: boolean; readonly against?: string | undefined },
  io: CliIo,
): Promise<number> {
  const { config, connect, against } = options;
  const settings = readOrSayWhy(() => loadSettings({ path: config, env: io.env }), io);
  if (settings === null) return 1;
  const warnings = configurationWarnings(settings, io.clock.now());
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

const ok = (text: string): string => `ok:     ${text}`;
const failed = (text: string): string => `FAILED: ${text}`;

/** Tries everything, one after the other. Resolves with a line for each, in the order of the file, and how many say that it does not work. */
export async function tryConnections(settings: Settings) {
  const { redis, upstreams } = settings;
  const lines: string[] = [];
  if (redis !== null) {
    const trouble = await tryRedis(redis, { clock: systemClock, random: systemRandom });
    lines.push(
      trouble === null ? ok('redis: can be used') : failed(`redis (${trouble.reason}): ${trouble.advice}`),
    );
  }
  for (const upstream of upstreams.values()) {
    const ofWorkspaces = [...settings.workspaces.values()].flatMap(({ id, credentials }) => {
      const own = credentials.get(upstream.name);
      return own === undefined ? [] : [[`, credential of workspace ${id}`, own] as const];
    });
    for (const origin of upstream.origins) {
      const at = `${upstream.name} ${originText(origin)}`;
      if (origin.wildcard) lines.push(ok(`${at}: not tried, each call names its own host`));
      else
        for (const [whose, credential] of [['', upstream.credential] as const, ...ofWorkspaces])
          lines.push(await trialLine(`${at}${whose}`, upstream, originText(origin), credential));
    }
  }
  return { lines, failures: lines.filter((line) => line.startsWith(failed(''))).length };
}

/** Reads or fetches the credential, and tries the origin with it. */
async function trialLine(
  at: string,
  upstream: UpstreamSettings,
  origin: string,
  credential: UpstreamCredential | null,
): Promise<string> {
  const clock = systemClock;
  const read = credential === null ? null : await valueOf(credential, upstream);
  if (read?.kind === 'failed')
    return failed(`${at}: the credential is not available: ${credentialFaultWords[read.fault]}`);
  if (read?.kind === 'unused')
    return ok(
      `${at}: not tried; the refresh token’s file can be read and replaced, and to use the token would end it`,
    );
  const injected =
    credential === null || read === null ? null : { field: credential.field, value: read.value };
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

/**
 * The value of a credential, read or fetched once and not kept. No refresh token is used, because that would end it: `unused` where its
 * file could be replaced.
 */
async function valueOf({ source }: UpstreamCredential, upstream: UpstreamSettings) {
  if (source.kind === 'value') return source;
  const clock = systemClock;
  const fetch = async (): Promise<Fetched | null> => {
    if (source.kind === 'file') return readCredential(source.path, clock);
    const { client } = source;
    const { signal } = new AbortController();
    if (client.refreshTokenFile === null)
      return clientCredentials(
        clock,
        createEndpoint({ clock }),
      )({ client, upstream, unwanted: null, signal });
    const seen = await readTokenFile(client.refreshTokenFile);
    if (seen.kind === 'failed') return seen;
    return (await canReplace(seen)) ? null : noToken('unwritable');
  };
  const read = await fetch();
  if (read === null) return { kind: 'unused' } as const;
  return read.kind === 'failed' ? read : ({ kind: 'value', value: source.prefix + read.token } as const);
}
