/** A silent subscription: the connection lives, its pings are answered, and no message ever comes. */
import { afterEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { connectRedis } from '../../src/redis/connection.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { startRedis } from '../support/redis.ts';
import { redisWire } from '../support/redis-wire.ts';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

const later = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 5));

type Silence = 'confirmed wrongly' | 'never confirmed' | 'confirmed but without messages';

/** A proxy to Redis on which the first `times` subscriptions are silent, and everything else works. */
async function silentWire(target: number, silence: Silence, times: number) {
  let subscriptions = 0;
  const wire = await redisWire(
    () => target,
    (client, redis) => {
      let isSilent = false;
      client.on('data', (bytes) => {
        if (!bytes.toString().toLowerCase().includes('\r\nsubscribe\r\n')) return void redis.write(bytes);
        subscriptions += 1;
        isSilent = subscriptions <= times;
        if (!isSilent || silence === 'confirmed but without messages') return void redis.write(bytes);
        if (silence === 'confirmed wrongly') client.write('*3\r\n:1\r\n:2\r\n:3\r\n');
      });
      redis.on('data', (bytes) => {
        if (!isSilent || !bytes.toString().includes('\r\nmessage\r\n')) client.write(bytes);
        else if (bytes.toString().endsWith('+PONG\r\n')) client.write('+PONG\r\n');
      });
    },
  );
  closers.push(() => wire.close());
  return { port: wire.port, subscriptions: () => subscriptions };
}

test.each(['confirmed wrongly', 'never confirmed', 'confirmed but without messages'] as const)(
  'a subscription that is %s is made again until messages come',
  async (silence) => {
    const redis = await startRedis();
    closers.push(() => redis.stop());
    const wire = await silentWire(redis.port, silence, 2);
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
    // The subscription counts as ready once a message has come, not before.
    expect(readyAt).toBeGreaterThanOrEqual(3);
    expect(failures).toBeGreaterThanOrEqual(2);
    const straight = new Redis(redis.port, '127.0.0.1');
    closers.push(() => straight.disconnect());
    // A process that was kept from running for two seconds makes its subscription anew: until then nobody hears.
    while ((await straight.publish('grants', 'hello')) === 0) await later();
    while (heard.length === 0) await later();
    // Messages by which the connection tests itself are not delivered.
    expect(heard).toEqual(['hello']);
  },
);
