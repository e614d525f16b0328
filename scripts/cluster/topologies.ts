/** Redis behind Sentinels, as a Cluster, and behind TLS with a user that may do no more than needed. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { pause } from '../../test/support/redis-fleet.ts';
import type { RedisServer } from '../../test/support/redis.ts';
import { cli, startSentinel, startServer, stopServer, until } from './processes.ts';
import { hasWaitingCall, leftAtLast, nothingLeft, remainsInWords } from './remains.ts';
import { allSucceeded, noneLost, type Row, type Scenario } from './row.ts';
import { aftermath, backOnRedis, chat, chatWorld, fill, see, took, type World } from './worlds.ts';

/** A chat load of 30 s into a full bucket while a server is killed. */
async function underFailover(world: World, strike: () => Promise<void>): Promise<Row> {
  await fill(world);
  const meanwhile = async (): Promise<void> => {
    await pause(3_000);
    await strike();
  };
  const seen = await see(world, { ...chat(world, 90), calls: 300, everyMs: 25, meanwhile });
  const back = await backOnRedis(world);
  const after = await aftermath(world);
  await world.end();
  return {
    holds: noneLost(seen.responses) && seen.twice === 0 && back === 3,
    holdsWhenQuiet: allSucceeded(seen.responses) && seen.throttled === 0,
    figures: `${took(seen)}; ${seen.words}; ${after}; on Redis again ${back}`,
  };
}

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

const sentinel: Scenario = {
  name: 'Sentinel: primary killed under load',
  async run(): Promise<Row> {
    const { url, primary, second } = await startWatched();
    const world = await chatWorld(`url: "${url}"`, 600);
    const row = await underFailover(world, () => stopServer(primary));
    await stopServer(second);
    return row;
  },
};

const words = (text: string): string[] => text.split(' ');
const clusterArgs = words(
  '--cluster-enabled yes --cluster-node-timeout 1000 --cluster-replica-validity-factor 0',
);

const cluster: Scenario = {
  name: 'Cluster of 3 primaries: owner of the bucket killed under load',
  async run(): Promise<Row> {
    const servers = await clusterNodes();
    const addresses = servers.map(({ port }) => `127.0.0.1:${port}`);
    const world = await chatWorld(`url: "redis+cluster://${addresses.slice(0, 3).join(',')}"`, 600);
    const killOwner = async (): Promise<void> => {
      for (const server of servers.slice(0, 3)) {
        if (await hasWaitingCall(server.port)) return stopServer(server);
      }
      throw new Error('no node has the bucket');
    };
    const row = await underFailover(world, killOwner);
    await Promise.all(servers.map(stopServer));
    return row;
  },
};

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

const certificate = fileURLToPath(new URL('../../test/fixtures/tls/upstream.test.crt', import.meta.url));
const certificateKey = fileURLToPath(new URL('../../test/fixtures/tls/upstream.test.key', import.meta.url));
/** The user of `docs/operate/redis.md`. */
const user = '--user sluice on >key-of-sluice ~sluice:* &sluice:* +@all -@admin -@dangerous +info';
const admin = '--user default on >key-of-admin ~* &* +@all';

const secured: Scenario = {
  name: 'TLS and an ACL user; every connection cut under load',
  async run(): Promise<Row> {
    const server = await startServer({
      args: (port) => [
        ...words(`--port 0 --tls-port ${port} --tls-auth-clients no ${user} ${admin}`),
        '--tls-cert-file',
        certificate,
        '--tls-key-file',
        certificateKey,
        '--tls-ca-cert-file',
        certificate,
      ],
    });
    const { port } = server;
    const as = { tls: { ca: readFileSync(certificate) }, password: 'key-of-admin' };
    const redis = `url: "rediss://sluice:key-of-sluice@127.0.0.1:${port}", tls: { caFile: "${certificate}" }`;
    const world = await chatWorld(redis, 600);
    await fill(world);
    const meanwhile = async (): Promise<void> => {
      await pause(1_000);
      const operator = new Redis(port, '127.0.0.1', as);
      await operator.call('CLIENT', 'KILL', 'USER', 'sluice');
      operator.disconnect();
    };
    const seen = await see(world, { ...chat(world, 60), calls: 100, everyMs: 25, meanwhile });
    const after = await aftermath(world);
    const remains = await leftAtLast(port, as);
    await world.end();
    await stopServer(server);
    return {
      holds: noneLost(seen.responses) && seen.twice === 0 && nothingLeft(remains),
      holdsWhenQuiet: allSucceeded(seen.responses) && seen.throttled + seen.crossed === 0,
      figures: `${took(seen)}; ${seen.words}; ${after}; ${remainsInWords(remains)}`,
    };
  },
};

export const topologies = { sentinel, cluster, secured };
