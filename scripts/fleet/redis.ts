/** Redis of verifications: one server, one behind Sentinels, a Cluster; and what can happen to a server. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { freePort } from '../../test/support/free-port.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { redisBinary, startRedis, type RedisOptions, type RedisServer } from '../../test/support/redis.ts';
import { atEnd, eventually, firstLine, newFolder, start } from './processes.ts';

const exec = promisify(execFile);
/** By their ports: a server that was started again has the port of the one before. */
const servers = new Map<number, RedisServer>();

/** Why there is no Redis here; `null` = there is one. */
export const noRedis = (): Promise<string | null> => redisBinary().then(() => null, String);

export async function startServer(options: RedisOptions = {}): Promise<RedisServer> {
  const server = await startRedis(options);
  servers.set(server.port, server);
  return server;
}

/** Kills the server on this port. */
export async function stopServer({ port }: Pick<RedisServer, 'port'>): Promise<void> {
  const server = servers.get(port);
  servers.delete(port);
  await server?.stop();
}

atEnd(() => Promise.all([...servers.values()].map(stopServer)));

/** The server on this port is killed, and after a while an empty one is there. */
export async function restartEmpty(port: number, awayMs: number): Promise<void> {
  await stopServer({ port });
  await pause(awayMs);
  await startServer({ port });
}

/** The server on this port answers nobody for a while. */
export const hang = (port: number, forMs: number): Promise<void> =>
  standStill(servers.get(port)?.pid ?? 0, forMs);

/** Keeps a process from running for a while. */
export async function standStill(pid: number, forMs: number): Promise<void> {
  process.kill(pid, 'SIGSTOP');
  await pause(forMs);
  process.kill(pid, 'SIGCONT');
}

export const cli = async (port: number, ...args: readonly string[]): Promise<string> =>
  (await exec('redis-cli', ['-p', String(port), ...args])).stdout.trim();

/** A primary, its replica, and three Sentinels that know both. */
export async function startWatched(): Promise<{
  readonly url: string;
  readonly primary: RedisServer;
  readonly second: RedisServer;
}> {
  const primary = await startServer();
  const second = await startServer({ args: ['--replicaof', '127.0.0.1', String(primary.port)] });
  const watchers = await Promise.all([1, 2, 3].map(() => startSentinel(primary.port)));
  await eventually(async () => {
    const summary = await cli(watchers[0] ?? 0, 'sentinel', 'master', 'main');
    return /num-slaves\n1\n/.test(summary) && /num-other-sentinels\n2\n/.test(summary);
  }, 120_000);
  const nodes = watchers.map((port) => `127.0.0.1:${port}`).join(',');
  return { url: `redis+sentinel://${nodes}/main`, primary, second };
}

/** A Sentinel that watches `primary` under the name `main`. */
async function startSentinel(primary: number): Promise<number> {
  // Another process may take the port before the Sentinel does.
  for (let attempt = 1; ; attempt += 1) {
    const [port, folder] = [await freePort(), await newFolder()];
    const file = join(folder, 'sentinel.conf');
    const lines = [
      `port ${port}`,
      'bind 127.0.0.1',
      `dir ${folder}`,
      `sentinel monitor main 127.0.0.1 ${primary} 2`,
      'sentinel down-after-milliseconds main 500',
      'sentinel failover-timeout main 3000',
    ];
    await writeFile(file, lines.join('\n'));
    const sentinel = start(await redisBinary(), [file, '--sentinel']);
    try {
      await firstLine(sentinel, (line) => (line.includes('+monitor') ? true : null));
      return port;
    } catch (failure) {
      if (attempt === 8) throw failure;
    }
  }
}

/** The nodes of a Cluster that is ready: three primaries, then a replica of each. */
export async function clusterNodes(): Promise<readonly RedisServer[]> {
  const args = '--cluster-enabled yes --cluster-node-timeout 1000 --cluster-replica-validity-factor 0';
  const nodes: RedisServer[] = [];
  for (let n = 0; n < 6; n += 1)
    nodes.push(await startServer({ isClusterNode: true, args: args.split(' ') }));
  const addresses = nodes.map(({ port }) => `127.0.0.1:${port}`);
  const how = ['--cluster-replicas', '1', '--cluster-yes'];
  await cli(nodes[0]?.port ?? 0, '--cluster', 'create', ...addresses, ...how);
  await eventually(async () => {
    const infos = await Promise.all(nodes.map(({ port }) => cli(port, 'cluster', 'info')));
    return infos.every((info) => info.includes('cluster_state:ok'));
  }, 120_000);
  return nodes;
}
