/** A log in a real Redis: replicas that follow it have the same state at the same place, whatever happens to Redis. */
import { afterEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { agree, keys, Replica, type Digests } from './replicas.ts';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

async function server(port?: number, args: readonly string[] = []): Promise<RedisServer> {
  const started = await startRedis({ ...(port === undefined ? {} : { port }), args });
  closers.push(() => started.stop());
  return started;
}

function operator({ port }: { readonly port: number }): Redis<'legacy'> {
  const made = new Redis<'legacy'>(port, '127.0.0.1', { replyMapping: 'legacy' });
  made.on('error', () => {});
  closers.push(() => made.disconnect());
  return made;
}

/** Replicas of one installation. */
function installation({ port }: { readonly port: number }, options: { readonly maxLogBytes?: number } = {}) {
  const digests: Digests = new Map();
  const replicas: Replica[] = [];
  return {
    replicas,
    add: async (): Promise<Replica> => {
      const settings = { nodes: [{ host: '127.0.0.1', port }] };
      const replica = new Replica(`r${replicas.length + 1}`, { settings, digests, ...options });
      closers.push(() => replica.close());
      replicas.push(replica);
      return replica.start();
    },
  };
}

/** Three replicas that have said something and agree. */
async function three(redis: { readonly port: number }, options: { readonly maxLogBytes?: number } = {}) {
  const all = installation(redis, options);
  const [a, b, c] = [await all.add(), await all.add(), await all.add()];
  await until(() => all.replicas.every((replica) => replica.isJoined));
  for (const replica of all.replicas) for (let n = 0; n < 20; n += 1) replica.say(`${replica.id}.${n}`);
  await agree(all.replicas);
  return { ...all, a, b, c };
}

/** The replicas go on saying things, one every few milliseconds each, until the function that is returned is called. */
function talk(replicas: readonly Replica[]): () => void {
  let count = 0;
  const timer = setInterval(() => {
    count += 1;
    for (const replica of replicas) replica.say(`${replica.id}+${count}`);
  }, 3);
  closers.push(() => clearInterval(timer));
  return () => clearInterval(timer);
}

/** All replicas have heard so many more entries. */
async function goOn(replicas: readonly Replica[], entries = 30): Promise<void> {
  const from = replicas.map(({ said }) => said.length);
  await until(() => replicas.every(({ said }, at) => said.length >= (from[at] ?? 0) + entries));
}

test('three replicas have the same state at every place, and every word once', async () => {
  const redis = await server();
  const { replicas, a, b } = await three(redis);
  expect(a.events).toEqual(['restored', 'joined']);
  expect(b.events).toEqual(['restored', 'joined']);
  expect(replicas.flatMap(({ bugs }) => bugs)).toEqual([]);
  expect(b.log.staleMs()).toBeGreaterThanOrEqual(0);
  expect(Math.abs(a.log.now() - Date.now())).toBeLessThan(60_000);
});

test('what is appended in one turn, and while an append is under way, is one batch each', async () => {
  const redis = await server();
  const all = installation(redis);
  const a = await all.add();
  await until(() => a.isJoined);
  const before = a.sequence;
  for (let n = 0; n < 50; n += 1) a.say(`a${n}`);
  await until(() => a.hasOwn);
  expect(a.sequence).toBe(before + 1);
});

test('a replica that joins later has the state of the others', async () => {
  const redis = await server();
  const { replicas, add, a } = await three(redis);
  const d = await add();
  d.say('lost, since the copy has not joined');
  await agree(replicas);
  expect(d.events).toEqual(['restored', 'joined']);
  expect(a.events).toEqual(['restored', 'joined']);
});

test('connections that are killed while entries are appended lose and repeat nothing', async () => {
  const redis = await server();
  const { replicas } = await three(redis);
  const control = operator(redis);
  const stop = talk(replicas);
  for (let n = 0; n < 15; n += 1) {
    await control.call('CLIENT', 'KILL', 'TYPE', n % 2 === 0 ? 'normal' : 'pubsub', 'SKIPME', 'yes');
    await goOn(replicas);
  }
  stop();
  await agree(replicas);
});

test('every key has an expiry, and all are renewed together', async () => {
  const redis = await server();
  const { replicas, a } = await three(redis, { maxLogBytes: 2_000 });
  const control = operator(redis);
  const stop = talk(replicas);
  await until(async () => (await control.keys('*')).filter((key) => key.startsWith(keys.saved)).length >= 2);
  stop();
  await agree(replicas);
  for (const key of await control.keys('*')) expect(await control.pttl(key)).toBeGreaterThan(0);
  for (const key of await control.keys('*')) await control.pexpire(key, 100_000);
  // As if the last renewal had been long ago.
  await control.hset(keys.head, 'renewed', 0);
  a.tick();
  await until(async () => (await control.pttl(keys.log)) > 3_000_000);
  expect(await control.pttl(keys.head)).toBeGreaterThan(3_000_000);
  const [life, saved] = await control.hmget(keys.head, 'life', 'saved');
  expect(await control.pttl(`${keys.saved}${String(life)}.${String(saved)}`)).toBeGreaterThan(3_000_000);
});

test('FLUSHALL loses nothing that a living replica knows, and a newcomer gets it', async () => {
  const redis = await server();
  const { replicas, add } = await three(redis);
  const control = operator(redis);
  const stop = talk(replicas);
  for (let n = 0; n < 5; n += 1) {
    await control.flushall();
    await goOn(replicas);
  }
  stop();
  await agree(replicas);
  const terms = replicas.map(({ term }) => term);
  expect(Math.min(...terms)).toBeGreaterThan(1);
  await control.flushall();
  await add();
  await agree(replicas);
});
