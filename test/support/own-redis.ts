/** Real Redis servers of one test, clients of them and wires to them: all are closed when the test ends, the last one first. */
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { Redis } from 'ioredis';
import { closers } from './closers.ts';
import { startRedis, type RedisOptions, type RedisServer } from './redis.ts';
import { until } from './until.ts';

export { closers };

export async function ownRedis(options: RedisOptions = {}): Promise<RedisServer> {
  const started = await startRedis(options);
  closers.push(() => started.stop());
  return started;
}

/** A client straight to a server, for what an operator does and a test looks at. */
export function operator({ port }: { readonly port: number }): Redis<'legacy'> {
  const made = new Redis<'legacy'>(port, '127.0.0.1', { replyMapping: 'legacy' });
  made.on('error', () => {});
  closers.push(() => made.disconnect());
  return made;
}

/** A replica of this server that has everything the server has. */
export async function replicaOf({ port }: { readonly port: number }): Promise<RedisServer> {
  const second = await ownRedis({ args: ['--replicaof', '127.0.0.1', String(port)] });
  const asked = operator(second);
  await until(async () => /master_link_status:up/.test(await asked.info('replication')));
  return second;
}

/** Nodes of a Cluster that have these slots each, and know each other. */
export async function clusterNodes(...slots: readonly (readonly [from: number, to: number])[]) {
  const nodes = await Promise.all(
    slots.map(async ([from, to]) => {
      const args = ['--cluster-enabled', 'yes', '--cluster-require-full-coverage', 'no'];
      const server = await ownRedis({ isClusterNode: true, args });
      const control = operator(server);
      await control.call('CLUSTER', 'ADDSLOTSRANGE', from, to);
      return { ...server, control };
    }),
  );
  const [first, ...others] = nodes;
  for (const { port } of others) await first?.control.call('CLUSTER', 'MEET', '127.0.0.1', port);
  for (const { control } of nodes)
    await until(async () => {
      const info = String(await control.call('CLUSTER', 'INFO'));
      return info.includes('state:ok') && info.includes(`known_nodes:${nodes.length}`);
    });
  return nodes;
}

/** Told what comes on one connection; bytes pass where it returns true. */
type Pass = (bytes: Buffer, client: Socket, redis: Socket) => boolean;

/** A way to Redis on which a test decides what passes. When one side closes, so does the other. */
export async function wireTo(
  { port: target }: { readonly port: number },
  { toRedis = passes, toClient = passes }: { readonly toRedis?: Pass; readonly toClient?: Pass } = {},
) {
  const sockets = new Set<Socket>();
  const server = createServer((client) => {
    const redis = connect(wire.target, '127.0.0.1');
    for (const socket of [client, redis]) {
      sockets.add(socket.on('error', () => {}));
      socket.on('close', () => {
        sockets.delete(socket);
        client.destroy();
        redis.destroy();
      });
    }
    client.on('data', (bytes) => void (toRedis(bytes, client, redis) && redis.write(bytes)));
    redis.on('data', (bytes) => void (toClient(bytes, client, redis) && client.write(bytes)));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  /** `target`: the port of the server to which new connections lead. */
  const wire = { port, target };
  closers.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return wire;
}

const passes: Pass = () => true;
