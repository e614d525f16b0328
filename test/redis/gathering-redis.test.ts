/** Commands of one turn of the event loop leave in few writes, in order, and none waits for another turn. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { GatheringRedis } from '../../src/redis/connection.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

let server: RedisServer;
let client: GatheringRedis;
beforeAll(async () => {
  server = await startRedis();
});
afterEach(() => {
  client.disconnect();
});
afterAll(() => server.stop());

/** How often the socket has handed bytes to the system, in which form ever. */
async function countingWrites(): Promise<() => number> {
  client = new GatheringRedis(server.port, '127.0.0.1', {
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    retryStrategy: () => 10,
  });
  await client.ping();
  let writes = 0;
  const { stream } = client;
  for (const name of ['_write', '_writev'] as const) {
    const write: unknown = Reflect.get(stream, name);
    if (typeof write !== 'function') throw new TypeError(`a socket has no ${name}`);
    Reflect.set(stream, name, (...words: unknown[]): unknown => {
      writes += 1;
      return Reflect.apply(write, stream, words);
    });
  }
  return () => writes;
}

test('commands of one turn leave in one write, in their order', async () => {
  const writes = await countingWrites();
  const asked = Array.from({ length: 10 }, () => client.incr('n'));
  expect(writes()).toBe(0);
  expect(await Promise.all(asked)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  expect(writes()).toBe(1);
});

test('a long turn does not keep its first commands to its end', async () => {
  const writes = await countingWrites();
  const asked = Array.from({ length: 20 }, () => client.incr('m'));
  expect(writes()).toBeGreaterThan(0);
  await Promise.all(asked);
  expect(writes()).toBeLessThan(8);
});

test('a connection that is lost with commands gathered rejects them, and a new one gathers again', async () => {
  await countingWrites();
  const lost = client.incr('k');
  client.stream.destroy();
  await expect(lost).rejects.toThrow();
  await new Promise((resolve) => client.once('ready', resolve));
  const asked = [client.get('k'), client.ping()];
  expect(await Promise.all(asked)).toEqual([null, 'PONG']);
});
