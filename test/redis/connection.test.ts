import { afterEach, describe, expect, test } from '@jest/globals';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { RedisSettings } from '../../src/config/settings.ts';
import { connectRedis, type RedisConnection } from '../../src/redis/connection.ts';
import { redisTrouble } from '../../src/redis/trouble.policy.ts';
import { freePort } from '../support/free-port.ts';
import { manualClock } from '../support/manual-clock.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { redisBinary, startRedis } from '../support/redis.ts';
import { redisWire } from '../support/redis-wire.ts';
import { until } from '../support/until.ts';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

/** A proxy to Redis that breaks when the reply to a command is on its way: the command ran, but its reply is lost. */
async function breakingWire() {
  let target = 0;
  let fatal: string | null = null;
  let broken = 0;
  const wire = await redisWire(
    () => target,
    (client, redis) => {
      let isDoomed = false;
      client.on('data', (bytes) => {
        redis.write(bytes);
        if (fatal === null || !bytes.toString().toLowerCase().includes(fatal)) return;
        fatal = null;
        isDoomed = true;
      });
      redis.on('data', (bytes) => {
        if (!isDoomed) return void client.write(bytes);
        broken += 1;
        client.destroy();
      });
    },
  );
  closers.push(() => wire.close());
  return {
    port: wire.port,
    to: (port: number) => void (target = port),
    /** Breaks once, at the next reply to this command. */
    breakAt: (command: string) => void (fatal = command),
    broken: () => broken,
  };
}

const settingsOf = (mode: RedisSettings['mode'], port: number): RedisSettings =>
  plainRedis({ mode, nodes: [{ host: '127.0.0.1', port }] });

async function ready(connection: RedisConnection): Promise<void> {
  while (!connection.isReady()) await new Promise((resolve) => setTimeout(resolve, 5));
}

/** The result of a read as soon as there is a connection again. */
async function reconnected<T>(read: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await read();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

/** A server of the test's own, and a client straight to it. */
async function server(args: readonly string[]) {
  const redis = await startRedis({ args });
  const straight = new Redis(redis.port, '127.0.0.1');
  closers.push(async () => {
    straight.disconnect();
    await redis.stop();
  });
  return { port: redis.port, straight };
}

/** A Cluster whose first primary, behind the wire, has every slot but one: the other keeps it whole when the wire breaks. */
async function cluster(wire: { readonly port: number }) {
  const enabled = ['--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1'];
  const first = await server([...enabled, '--cluster-announce-port', String(wire.port)]);
  const second = await server(enabled);
  const slots = Array.from({ length: 16_384 }, (_, slot) => String(slot));
  await first.straight.call('CLUSTER', 'ADDSLOTS', ...slots.slice(0, -1));
  await second.straight.call('CLUSTER', 'ADDSLOTS', ...slots.slice(-1));
  await second.straight.call('CLUSTER', 'MEET', '127.0.0.1', String(first.port));
  for (const { straight } of [first, second]) {
    const isWhole = async (): Promise<boolean> =>
      /state:ok[^]*slots_ok:16384/.test(String(await straight.call('CLUSTER', 'INFO')));
    while (!(await isWhole())) await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return first;
}

/** A server of that mode behind the proxy, with the connection under test on the proxy and a client straight to the server. */
async function setUp(mode: 'single' | 'cluster') {
  const wire = await breakingWire();
  const { port, straight } = await (mode === 'single' ? server([]) : cluster(wire));
  wire.to(port);
  const connection = connectRedis(
    settingsOf(mode, wire.port),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  closers.push(() => connection.close());
  await ready(connection);
  return { wire, straight, connection };
}

// By default ioredis sends commands without a reply again when it reconnects, and a Cluster client when a node is gone:
// a command that takes a slot would take two. `client/health.ts` decides whether to repeat a command, with the same id.
describe.each(['single', 'cluster'] as const)('a command whose reply is lost (Redis mode: %s)', (mode) => {
  test('fails and is not sent again by the driver when it reconnects', async () => {
    const { wire, straight, connection } = await setUp(mode);
    const { client } = connection;
    expect(await client.incr('{count}')).toBe(1);
    wire.breakAt('incr');
    await expect(client.incr('{count}')).rejects.toThrow();
    expect(wire.broken()).toBe(1);
    // This read uses the new connection: a command that was sent again would have run before it.
    expect(await reconnected(() => client.get('{count}'))).toBe('2');
    expect(await straight.get('{count}')).toBe('2');
  });

  test('fails together with the commands written with it, and none of them runs twice', async () => {
    const { wire, connection } = await setUp(mode);
    const { client } = connection;
    wire.breakAt('incr');
    const keys = Array.from({ length: 20 }, (_, at) => `{count}${at}`);
    const results = await Promise.allSettled(keys.map((key) => client.incr(key)));
    expect(results.filter(({ status }) => status === 'rejected').length).toBeGreaterThan(0);
    const counts = await reconnected(() => client.mget(keys));
    expect(Math.max(...counts.map(Number))).toBe(1);
  });
});

test('the Redis connection is made again when the driver has given it up', async () => {
  const redis = await startRedis();
  closers.push(() => redis.stop());
  const connection = connectRedis(
    settingsOf('single', redis.port),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  closers.push(() => connection.close());
  await ready(connection);
  connection.client.disconnect();
  await once(connection.client, 'end');
  await ready(connection);
  expect(await connection.client.ping()).toBe('PONG');
});

/** A Sentinel that wants this password and watches a server with the password `primary`. */
async function lockedSentinel(password: string): Promise<number> {
  const redis = await startRedis({ args: ['--requirepass', 'primary'] });
  const port = await freePort();
  const folder = await mkdtemp(join(tmpdir(), 'sluice-sentinel-'));
  const watched = `sentinel monitor main 127.0.0.1 ${redis.port} 1\nsentinel auth-pass main primary`;
  const file = join(folder, 'sentinel.conf');
  await writeFile(file, `port ${port}\nbind 127.0.0.1\nrequirepass ${password}\n${watched}\n`);
  const sentinel = spawn(await redisBinary(), [file, '--sentinel'], { stdio: 'ignore' });
  closers.push(async () => {
    const ended = once(sentinel, 'exit');
    sentinel.kill('SIGKILL');
    await ended;
    await redis.stop();
    await rm(folder, { recursive: true });
  });
  return port;
}

test.each([
  ['that of the primary', 'primary', 'primary'],
  ['one of their own', 'watcher', 'watcher'],
])('Sentinels that want a password are asked with it (%s)', async (_, wanted, sentinelPassword) => {
  const nodes = [{ host: '127.0.0.1', port: await lockedSentinel(wanted) }];
  const watched = { mode: 'sentinel', sentinelName: 'main', nodes, password: 'primary' } as const;
  const parts = { clock: systemClock, random: systemRandom };
  const connection = connectRedis(plainRedis({ ...watched, sentinelPassword }), parts, () => {});
  closers.push(() => connection.close());
  await ready(connection);
  expect(await connection.client.ping()).toBe('PONG');

  const reasons = new Set<string | undefined>();
  const wrong = plainRedis({ ...watched, sentinelPassword: 'wrong' });
  const refused = connectRedis(wrong, parts, (failure) => {
    reasons.add(redisTrouble(failure, { tls: false })?.reason);
  });
  closers.push(() => refused.close());
  await until(() => reasons.has('password'));
  expect(refused.isReady()).toBe(false);
});

test('further errors of a socket that has broken end nothing, such as the alert of a TLS peer that is not trusted', async () => {
  const server = await startRedis();
  closers.push(() => server.stop());
  const seen: string[] = [];
  const connection = connectRedis(
    settingsOf('single', server.port),
    { clock: systemClock, random: systemRandom },
    (failure) => void seen.push(String(failure)),
  );
  closers.push(() => connection.close());
  await ready(connection);
  const { client } = connection;
  if (!(client instanceof Redis)) throw new Error('a Cluster');
  const { stream } = client;
  const closed = new Promise((resolve) => stream.once('close', resolve));
  stream.destroy(new Error('not trusted'));
  await closed;
  expect(() => stream.emit('error', new Error('a late alert'))).not.toThrow();
  await ready(connection);
  expect(client.stream).not.toBe(stream);
  expect(seen.join()).toContain('not trusted');
});

test('messages that come one by one while they may wait are read as fast as they come', async () => {
  const server = await startRedis();
  closers.push(() => server.stop());
  const clock = manualClock();
  const failures: unknown[] = [];
  const connection = connectRedis(
    settingsOf('single', server.port),
    { clock, random: systemRandom },
    (failure) => failures.push(failure),
  );
  closers.push(() => connection.close());
  await ready(connection);
  const heard = new Set<string>();
  const joined = new Promise<void>((onReady) => {
    connection.subscribe('log', {
      onMessage: (text) => void heard.add(text),
      onReady,
      mayWait: () => true,
    });
  });
  await joined;
  const control = new Redis(server.port, '127.0.0.1');
  closers.push(() => control.disconnect());
  const texts = Array.from({ length: 200 }, (_, n) => `message ${n}`);
  for (const text of texts) await control.publish('log', text);
  // They have all come. A reading for each message would need as many pauses as there are messages.
  let pauses = 0;
  await until(() => {
    clock.advance(20);
    pauses += 1;
    return heard.size === texts.length || pauses === texts.length / 4;
  });
  expect(heard.size).toBe(texts.length);
  expect(failures).toEqual([]);
});

test('messages that may wait are read a little later, together and in order; those of who does not wait are read at once', async () => {
  const server = await startRedis();
  closers.push(() => server.stop());
  const clock = manualClock();
  const connection = connectRedis(
    settingsOf('single', server.port),
    { clock, random: systemRandom },
    () => {},
  );
  closers.push(() => connection.close());
  await ready(connection);
  let mayWait = true;
  const heard: string[] = [];
  const joined = new Promise<void>((onReady) => {
    connection.subscribe('log', {
      onMessage: (text) => void heard.push(text),
      onReady,
      mayWait: () => mayWait,
    });
  });
  await joined;
  const control = new Redis(server.port, '127.0.0.1');
  closers.push(() => control.disconnect());
  // A message may have been heard, and the ones behind it left unread, before this test listens.
  await until(async () => {
    if (heard.includes('first')) return true;
    clock.advance(20);
    await control.publish('log', 'first');
    return false;
  });
  heard.length = 0;
  for (const text of ['a', 'b', 'c']) await control.publish('log', text);
  for (let n = 0; n < 20; n += 1) await control.ping();
  expect(heard).toEqual([]);
  mayWait = false;
  // On a busy machine more of them may have begun to wait since.
  await until(() => {
    clock.advance(20);
    return heard.includes('c');
  });
  expect(heard.filter((text) => text !== 'first')).toEqual(['a', 'b', 'c']);
  await control.publish('log', 'd');
  await until(() => heard.includes('d'));
});
