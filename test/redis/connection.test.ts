/** The connection to Redis: what it does with commands whose replies are lost, with subscriptions, with servers that go, and with passwords. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock } from '../../src/clock.ts';
import { redisTrouble } from '../../src/redis/trouble.policy.ts';
import { freePort } from '../support/free-port.ts';
import { closers, clusterNodes, operator, ownRedis, wireTo } from '../support/own-redis.ts';
import { redisBinary } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { connected } from './connected.ts';

/** The driver leaves the timer of its last refresh of the slots running. */
const slotsTimerMs = 2_000;
afterAll(() => new Promise<void>((resolve) => void systemClock.after(slotsTimerMs, resolve)));

/** A wire that breaks, once, when the reply to this command is on its way: the command ran, but its reply is lost. */
async function breakingWire() {
  const doomed = new WeakSet<Socket>();
  const state = { fatal: '', broken: 0 };
  const wire = await wireTo(
    { port: 0 },
    {
      toRedis(bytes, client) {
        if (state.fatal !== '' && bytes.toString().toLowerCase().includes(state.fatal)) {
          state.fatal = '';
          doomed.add(client);
        }
        return true;
      },
      toClient(_bytes, client) {
        if (!doomed.has(client)) return true;
        state.broken += 1;
        client.destroy();
        return false;
      },
    },
  );
  return { wire, state };
}

/** A Cluster whose first primary, behind the wire, has every slot but one: the other keeps it whole when the wire breaks. */
async function clusterBehind({ port }: { readonly port: number }) {
  const enabled = ['--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1'];
  const first = await ownRedis({ args: [...enabled, '--cluster-announce-port', String(port)] });
  const [control, other] = [first, await ownRedis({ args: enabled })].map(operator) as [
    Redis<'legacy'>,
    Redis<'legacy'>,
  ];
  await control.call('CLUSTER', 'ADDSLOTSRANGE', 0, 16_382);
  await other.call('CLUSTER', 'ADDSLOTS', 16_383);
  await other.call('CLUSTER', 'MEET', '127.0.0.1', first.port);
  for (const one of [control, other])
    await until(async () => /state:ok[^]*slots_ok:16384/.test(String(await one.call('CLUSTER', 'INFO'))));
  return first;
}

/** The result of a read as soon as there is a connection again. */
async function reconnected<T>(read: () => Promise<T>): Promise<T> {
  let result: { readonly value: T } | null = null;
  await until(async () => {
    result = await read().then(
      (value) => ({ value }),
      () => null,
    );
    return result !== null;
  }, 20);
  return (result as unknown as { readonly value: T }).value;
}

// By default ioredis sends commands without a reply again when it reconnects, and a Cluster client when a node is gone:
// a command that takes a slot would take two. `client/health.ts` decides whether to repeat a command, with the same id.
describe.each(['single', 'cluster'] as const)('a command whose reply is lost (Redis mode: %s)', (mode) => {
  async function broken() {
    const { wire, state } = await breakingWire();
    const server = await (mode === 'single' ? ownRedis() : clusterBehind(wire));
    wire.target = server.port;
    return { state, straight: operator(server), client: (await connected({ mode, port: wire.port })).client };
  }

  test('fails together with the commands written with it, and none of them runs twice', async () => {
    const { state, client } = await broken();
    state.fatal = 'incr';
    const keys = Array.from({ length: 20 }, (_, at) => `{count}${at}`);
    const results = await Promise.allSettled(keys.map((key) => client.incr(key)));
    expect(results.filter(({ status }) => status === 'rejected').length).toBeGreaterThan(0);
    const counts = await reconnected(() => client.mget(keys));
    expect(Math.max(...counts.map(Number))).toBe(1);
  });
});

test('the Redis connection is made again when the driver has given it up', async () => {
  const connection = await connected(await ownRedis());
  connection.client.disconnect();
  await once(connection.client, 'end');
  await until(() => connection.isReady());
  expect(await connection.client.ping()).toBe('PONG');
});

/** A Sentinel that wants this password and watches a server with the password `primary`. */
async function lockedSentinel(password: string): Promise<number> {
  const redis = await ownRedis({ args: ['--requirepass', 'primary'] });
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
    await rm(folder, { recursive: true });
  });
  return port;
}

test.each([
  ['that of the primary', 'primary'],
  ['one of their own', 'watcher'],
])('Sentinels that want a password are asked with it (%s)', async (_, sentinelPassword) => {
  const port = await lockedSentinel(sentinelPassword);
  const watched = { mode: 'sentinel', sentinelName: 'main', port, password: 'primary' } as const;
  expect(await (await connected({ ...watched, sentinelPassword })).client.ping()).toBe('PONG');

  const reasons = new Set<string | undefined>();
  const refused = await connected({ ...watched, sentinelPassword: 'wrong' }, (failure) =>
    reasons.add(redisTrouble(failure)?.reason),
  );
  await until(() => reasons.has('password'));
  expect(refused.isReady()).toBe(false);
});

test('further errors of a socket that has broken end nothing, such as the alert of a TLS peer that is not trusted', async () => {
  const seen: string[] = [];
  const connection = await connected(await ownRedis(), (failure) => seen.push(String(failure)));
  await until(() => connection.isReady());
  const { client } = connection;
  if (!(client instanceof Redis)) throw new Error('a Cluster');
  const { stream } = client;
  const closed = new Promise((resolve) => stream.once('close', resolve));
  stream.destroy(new Error('not trusted'));
  await closed;
  expect(() => stream.emit('error', new Error('a late alert'))).not.toThrow();
  await until(() => connection.isReady());
  expect(client.stream).not.toBe(stream);
  expect(seen.join()).toContain('not trusted');
});

test('a Redis Cluster counts as reached while all its primaries answer, and a primary that is gone stays known', async () => {
  const nodes = await clusterNodes([0, 8_000], [8_001, 16_383]);
  const all = nodes.map(({ port }) => `127.0.0.1:${port}`).toSorted();
  const connection = await connected({ mode: 'cluster', port: nodes[0]?.port ?? 0, commandTimeoutMs: 2_000 });
  const isReached = (): Promise<boolean> =>
    connection.reachAll().then(
      () => true,
      () => false,
    );
  // The nodes learn of each other first, then the connection learns of them.
  await until(() => connection.primaries() === all.join(' '));
  await until(isReached);
  await nodes[1]?.stop();
  await until(async () => !(await isReached()));
  await until(() => connection.isReady());
  expect(connection.primaries()).toBe(all.join(' '));
  await expect(connection.reachAll()).rejects.toThrow(/closed/i);
});

test.each([
  "NOPERM this user has no permissions to run the 'zadd' command",
  "ERR The user executing the script can't run this command or subcommand script: fc54, on @user_script:1.",
  "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments script: 57f1",
  "ERR ACL failure in script: User default has no permissions to run the 'zadd' command script: fc54",
])('what an ACL refuses is named so, in a script as well: %s', (message) =>
  expect(redisTrouble(new Error(message))?.reason).toBe('permission'),
);

test('a subscription that is not confirmed is made again until it is', async () => {
  const redis = await ownRedis();
  let subscriptions = 0;
  const silent = new WeakSet<Socket>();
  // The first two are silent, and everything else works.
  const wire = await wireTo(redis, {
    toRedis(bytes, client) {
      if (!bytes.toString().toLowerCase().includes('\r\nsubscribe\r\n')) return true;
      subscriptions += 1;
      if (subscriptions <= 2) silent.add(client);
      return !silent.has(client);
    },
  });
  const heard: string[] = [];
  let [failures, readyAt] = [0, 0];
  const fail = (): void => void (failures += 1);
  const connection = await connected({ port: wire.port, keyPrefix: 'prefixed:' }, fail, true);
  connection.subscribe('grants', {
    onMessage: (text) => void heard.push(text),
    onReady: () => void (readyAt ||= subscriptions),
  });
  await until(() => readyAt > 0);
  expect(readyAt).toBeGreaterThanOrEqual(3);
  expect(failures).toBeGreaterThanOrEqual(2);
  const straight = operator(redis);
  // A process that was kept from running for two seconds makes its subscription anew: until then nobody hears.
  await until(async () => (await straight.publish('grants', 'hello')) > 0);
  await until(() => heard.length > 0);
  expect(heard).toEqual(['hello']);
});

test('a connection all of whose channels are refused is closed once, and reports the failure once', async () => {
  const redis = await ownRedis();
  const admin = operator(redis);
  await admin.call('ACL', 'SETUSER', 'default', 'resetchannels');
  const failures = new Set<unknown>();
  const connection = await connected(redis, (failure) => void failures.add(failure), true);
  let isReady = 0;
  // More than Node lets listen to the end of one socket without a warning.
  for (let n = 0; n < 20; n += 1)
    connection.subscribe(`channel-${n}`, {
      onMessage: () => {},
      onReady: () => void (isReady += 1),
    });
  await until(() => failures.size >= 2);
  const opened = (await connection.info()).match(/total_connections_received:(\d+)/);
  expect(failures.size).toBeLessThanOrEqual(Number(opened?.[1]));
  await admin.call('ACL', 'SETUSER', 'default', 'allchannels');
  await until(() => isReady === 20);
});
