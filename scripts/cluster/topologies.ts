/** Redis behind Sentinels, and as a Cluster. */
import type { RedisServer } from '../../test/support/redis.ts';
import { cli, startSentinel, startServer, until } from './processes.ts';

/** A primary, its replica, and three Sentinels that know both. */
export async function startWatched(): Promise<{
  readonly url: string;
  readonly primary: RedisServer;
  readonly second: RedisServer;
}> {
  const primary = await startServer();
  const second = await startServer({ args: ['--replicaof', '127.0.0.1', String(primary.port)] });
  const watchers = await Promise.all([1, 2, 3].map(() => startSentinel(primary.port, 2)));
  await until(async () => {
    const summary = await cli(watchers[0] ?? 0, 'sentinel', 'master', 'main');
    return /num-slaves\n1\n/.test(summary) && /num-other-sentinels\n2\n/.test(summary);
  }, 120_000);
  const nodes = watchers.map((port) => `127.0.0.1:${port}`).join(',');
  return { url: `redis+sentinel://${nodes}/main`, primary, second };
}

const words = (text: string): string[] => text.split(' ');
const clusterArgs = words(
  '--cluster-enabled yes --cluster-node-timeout 1000 --cluster-replica-validity-factor 0',
);

/** The nodes of a Cluster that is ready: three primaries, then a replica of each. */
export async function clusterNodes(): Promise<readonly RedisServer[]> {
  const servers: RedisServer[] = [];
  for (let n = 0; n < 6; n += 1) servers.push(await startServer({ isClusterNode: true, args: clusterArgs }));
  const addresses = servers.map(({ port }) => `127.0.0.1:${port}`);
  const first = servers[0]?.port ?? 0;
  await cli(first, '--cluster', 'create', ...addresses, '--cluster-replicas', '1', '--cluster-yes');
  await until(async () => {
    const infos = await Promise.all(servers.map(({ port }) => cli(port, 'cluster', 'info')));
    return infos.every((info) => info.includes('cluster_state:ok'));
  }, 120_000);
  return servers;
}
