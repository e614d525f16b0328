/** The function library on a real server: loaded in the background, lost, or forbidden; scripts run in its place meanwhile. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { bucketKey, replicaId } from '../../../../src/ids.ts';
import { applyCall } from '../../../../src/limiter/redis/protocol/event-codec.ts';
import { defineCommands, runApply } from '../../../../src/limiter/redis/protocol/commands.ts';
import { readBatch } from '../../../../src/limiter/redis/protocol/reply-codec.ts';
import { startRedis, type RedisServer } from '../../../support/redis.ts';

let server: RedisServer;
let plain: Redis;
const clients: Redis[] = [];

beforeAll(async () => {
  server = await startRedis();
  plain = new Redis(server.port, '127.0.0.1');
});
afterEach(async () => {
  for (const client of clients.splice(0)) client.disconnect();
  await plain.call('FUNCTION', 'FLUSH');
  await plain.config('RESETSTAT');
});
afterAll(async () => {
  plain.disconnect();
  await server.stop();
});

function connect(options: { readonly username?: string; readonly password?: string } = {}): Redis {
  const client = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy', ...options });
  clients.push(client);
  defineCommands(client);
  return client;
}

async function tick(client: Redis): Promise<void> {
  const events = [{ kind: 'tick', leases: [] }] as const;
  readBatch(
    await runApply(client, applyCall({ bucket: bucketKey('b'), replica: replicaId('r') }, events)),
    events,
  );
}

/** How often the server has run this command since the beginning of the test. */
async function ran(command: string): Promise<number> {
  const stats = await plain.info('commandstats');
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0);
}

/** Ticks until one has run as a function; more than a few would mean that none ever does. */
async function tickByLibrary(client: Redis): Promise<void> {
  const before = await ran('fcall');
  for (let tries = 0; tries < 50 && (await ran('fcall')) === before; tries += 1) await tick(client);
  expect(await ran('fcall')).toBeGreaterThan(before);
}

test('the first call does not wait for the function library, and later calls use it', async () => {
  const client = connect();
  await tick(client);
  expect(await ran('fcall')).toBe(0);
  expect(await ran('eval')).toBe(1);
  await tickByLibrary(client);
});

test('a second replica uses the function library that it finds', async () => {
  await tickByLibrary(connect());
  await tickByLibrary(connect());
  const libraries = await plain.call('FUNCTION', 'LIST');
  expect(libraries).toHaveLength(1);
});

test('a server that has lost the function library replies all the same, and gets it again', async () => {
  const client = connect();
  await tickByLibrary(client);
  await plain.call('FUNCTION', 'FLUSH');
  await tick(client);
  await tickByLibrary(client);
});

test('a server that has the function library is not sent it again with a new connection', async () => {
  const client = connect();
  await tickByLibrary(client);
  const received = async (): Promise<number> =>
    Number(/total_net_input_bytes:(\d+)/.exec(await plain.info('stats'))?.[1]);
  const before = await received();
  for (let n = 0; n < 3; n += 1) {
    const again = new Promise((resolve) => client.once('ready', resolve));
    client.disconnect(true);
    await again;
    for (let ticks = 0; ticks < 3; ticks += 1) await tick(client);
  }
  expect((await received()) - before).toBeLessThan(10_000);
});

test('a Redis user who may call functions no more runs scripts', async () => {
  await plain.call('ACL', 'SETUSER', 'narrowed', 'on', '>secret', '~*', '&*', '+@all');
  const client = connect({ username: 'narrowed', password: 'secret' });
  await tickByLibrary(client);
  await plain.call('ACL', 'SETUSER', 'narrowed', '-fcall');
  const before = await ran('evalsha');
  for (let n = 0; n < 5; n += 1) await tick(client);
  expect((await ran('evalsha')) - before).toBe(5);
});

test('a Redis user who may load no functions runs scripts', async () => {
  await plain.call('ACL', 'SETUSER', 'narrow', 'on', '>secret', '~*', '&*', '+@all', '-function', '-fcall');
  const client = connect({ username: 'narrow', password: 'secret' });
  for (let n = 0; n < 20; n += 1) await tick(client);
  expect(await ran('fcall')).toBe(0);
  expect((await ran('eval')) + (await ran('evalsha'))).toBeGreaterThanOrEqual(20);
  // The library was to be loaded once, not with every call.
  const stats = await plain.info('commandstats');
  expect(/cmdstat_function\|load:calls=0,.*rejected_calls=(\d+)/.exec(stats)?.[1]).toBe('1');
});
