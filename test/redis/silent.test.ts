/** A subscription that fails while its connection lives: it is not confirmed, or it is refused. */
import { afterEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { connectRedis } from '../../src/redis/connection.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { startRedis } from '../support/redis.ts';
import { redisWire } from '../support/redis-wire.ts';
import { until } from '../support/until.ts';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

const later = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 5));

/** A proxy to Redis on which the first `times` subscriptions are silent, and everything else works. */
async function silentWire(target: number, times: number) {
  let subscriptions = 0;
  const wire = await redisWire(
    () => target,
    (client, redis) => {
      let isSilent = false;
      client.on('data', (bytes) => {
        if (!bytes.toString().toLowerCase().includes('\r\nsubscribe\r\n')) return void redis.write(bytes);
        subscriptions += 1;
        isSilent = subscriptions <= times;
        if (!isSilent) redis.write(bytes);
      });
      redis.on('data', (bytes) => void client.write(bytes));
    },
  );
  closers.push(() => wire.close());
  return { port: wire.port, subscriptions: () => subscriptions };
}

test('a subscription that is not confirmed is made again until it is', async () => {
  const redis = await startRedis();
  closers.push(() => redis.stop());
  const wire = await silentWire(redis.port, 2);
  const connection = connectRedis(
    plainRedis({ nodes: [{ host: '127.0.0.1', port: wire.port }], keyPrefix: 'prefixed:' }),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  closers.push(() => connection.close());
  const heard: string[] = [];
  let failures = 0;
  let readyAt = 0;
  const ready = new Promise<void>((resolve) => {
    connection.subscribe('grants', {
      onMessage: (text) => void heard.push(text),
      onReady: () => {
        readyAt ||= wire.subscriptions();
        resolve();
      },
      onError: () => void (failures += 1),
    });
  });
  await ready;
  expect(readyAt).toBeGreaterThanOrEqual(3);
  expect(failures).toBeGreaterThanOrEqual(2);
  const straight = new Redis(redis.port, '127.0.0.1');
  closers.push(() => straight.disconnect());
  // A process that was kept from running for two seconds makes its subscription anew: until then nobody hears.
  while ((await straight.publish('grants', 'hello')) === 0) await later();
  while (heard.length === 0) await later();
  expect(heard).toEqual(['hello']);
});

test('a connection all of whose channels are refused is closed once, and reports the failure once', async () => {
  const redis = await startRedis();
  closers.push(() => redis.stop());
  const admin = new Redis(redis.port);
  closers.push(() => admin.disconnect());
  await admin.call('ACL', 'SETUSER', 'default', 'resetchannels');
  const connection = connectRedis(
    plainRedis({ nodes: [{ host: '127.0.0.1', port: redis.port }] }),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  closers.push(() => connection.close());
  // More than Node lets listen to the end of one socket without a warning.
  const channels = Array.from({ length: 20 }, (_, n) => `channel-${n}`);
  const failures = new Set<unknown>();
  let isReady = 0;
  const listener = {
    onMessage: () => {},
    onReady: () => void (isReady += 1),
    onError: (failure: unknown) => void failures.add(failure),
  };
  for (const channel of channels) connection.subscribe(channel, listener);
  await until(() => failures.size >= 2);
  const opened = (await connection.info()).match(/total_connections_received:(\d+)/);
  expect(failures.size).toBeLessThanOrEqual(Number(opened?.[1]));
  await admin.call('ACL', 'SETUSER', 'default', 'allchannels');
  await until(() => isReady === channels.length);
});
