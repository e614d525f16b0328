/** Servers and replicas of the tests of a log in Redis; whatever was started ends with its test. */
import { afterEach } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemRandom } from '../../src/clock.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { agree, Replica, type Digests } from './replicas.ts';

export const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

export async function server(port?: number, args: readonly string[] = []): Promise<RedisServer> {
  const started = await startRedis({ ...(port === undefined ? {} : { port }), args });
  closers.push(() => started.stop());
  return started;
}

export function operator({ port }: { readonly port: number }): Redis<'legacy'> {
  const made = new Redis<'legacy'>(port, '127.0.0.1', { replyMapping: 'legacy' });
  made.on('error', () => {});
  closers.push(() => made.disconnect());
  return made;
}

/** Replicas of one installation. */
export function installation(
  { port }: { readonly port: number },
  {
    mode = 'single',
    ...options
  }: { readonly maxLogBytes?: number; readonly mode?: 'single' | 'cluster' } = {},
) {
  const digests: Digests = new Map();
  const replicas: Replica[] = [];
  return {
    replicas,
    /** `over`: another way to the same Redis. */
    add: async (
      over: { readonly port: number } = { port },
      id = `${systemRandom.hex(4)}.${replicas.length + 1}`,
    ): Promise<Replica> => {
      const settings = { mode, nodes: [{ host: '127.0.0.1', port: over.port }] };
      const replica = new Replica(id, {
        settings,
        digests,
        ...options,
      });
      closers.push(() => replica.close());
      replicas.push(replica);
      return replica.start();
    },
  };
}

/** Three replicas that have said something and agree. */
export async function three(
  redis: { readonly port: number },
  options: { readonly maxLogBytes?: number } = {},
) {
  const all = installation(redis, options);
  const [a, b, c] = [await all.add(), await all.add(), await all.add()];
  await until(() => all.replicas.every((replica) => replica.isJoined));
  for (const replica of all.replicas) for (let n = 0; n < 20; n += 1) replica.say(`${replica.id}.${n}`);
  await agree(all.replicas);
  return { ...all, a, b, c };
}

/** The replicas go on saying things, one every few milliseconds each, until the function that is returned is called. */
export function talk(replicas: readonly Replica[]): () => void {
  let count = 0;
  const timer = setInterval(() => {
    count += 1;
    for (const replica of replicas) replica.say(`${replica.id}+${count}`);
  }, 3);
  closers.push(() => clearInterval(timer));
  return () => clearInterval(timer);
}

/** All replicas have heard so many more entries. */
export async function goOn(replicas: readonly Replica[], entries = 30): Promise<void> {
  const from = replicas.map(({ said }) => said.length);
  await until(() => replicas.every(({ said }, at) => said.length >= (from[at] ?? 0) + entries));
}
