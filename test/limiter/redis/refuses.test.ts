/** Error replies that no command of Sluice expects: calls go on as without Redis, and none ends in an internal error. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../../src/clock.ts';
import { connectRedis } from '../../../src/redis/connection.ts';
import { RedisHealth } from '../../../src/redis/health.ts';
import { RedisTroubles } from '../../../src/redis/troubles.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { admission } from '../../support/admission.ts';
import { redisSettings, startReplica } from '../../support/redis-replica.ts';

let server: RedisServer;
let straight: Redis;
beforeAll(async () => {
  server = await startRedis();
  straight = new Redis(server.port, '127.0.0.1');
});
afterAll(async () => {
  straight.disconnect();
  await server.stop();
});

test.each(['local', 'deny'])(
  'with whenDown: %s, a call goes on over Redis when the keys of its log have the wrong type: the log begins again',
  async (whenDown) => {
    const bucket = `spoilt-${whenDown}`;
    const replica = await startReplica(`url: "${server.url}", whenDown: ${whenDown}`);
    /** Resolves when the call may go: at once, or on a slow machine with a later message. */
    const enter = async (ticket: string): Promise<void> => {
      const { kind } = await replica.limiter.admit(
        admission(ticket, { bucket, limit: 1_000, windowMs: 60_000 }),
      );
      if (kind === 'queued') await replica.granted(ticket);
      else expect(kind).toBe('granted');
    };
    await enter('before');
    const keys = await straight.keys(`*${bucket}*`);
    expect(keys.length).toBeGreaterThan(0);
    for (const key of keys) await straight.set(key, 'not ours');
    await enter('after');
    expect(replica.noted).toEqual(['mode redis']);
    await replica.close();
  },
);

test('a command with an unexpected error reply is sent once, makes Redis unavailable at once and is logged as a bug', async () => {
  const { redis } = redisSettings(`url: "${server.url}"`);
  if (redis === null) throw new Error('no Redis is configured');
  const connection = connectRedis(redis, { clock: systemClock, random: systemRandom }, () => {});
  await new Promise((resolve) => connection.client.once('ready', resolve));
  const bugs: string[] = [];
  const log = { ...noTelemetry.log, bug: (_text: string, cause: unknown) => void bugs.push(String(cause)) };
  const health = new RedisHealth({
    connection,
    clock: systemClock,
    telemetry: { ...noTelemetry, log },
    troubles: new RedisTroubles(noTelemetry.log, { tls: false }),
    commandTimeoutMs: redis.commandTimeoutMs,
    tripsOnPermanentError: true,
    check: async () => {},
  });
  await straight.set('text', 'not a list');
  let sent = 0;
  const refused = health.run('other', (client) => {
    sent += 1;
    return client.lpush('text', 'more');
  });
  expect(await refused).toEqual({ kind: 'unavailable' });
  expect([sent, health.isUp]).toEqual([1, false]);
  expect(bugs).toEqual([expect.stringMatching(/^ReplyError: WRONGTYPE/)]);
  // Redis is there and is tried again: one wrong key does not make it unavailable for good.
  await new Promise<void>((resolve) => {
    health.watch({ onUnavailable: () => {}, onAvailable: resolve });
  });
  const read = await health.run('other', (client) => client.get('text'));
  expect(read).toMatchObject({ kind: 'reply', value: 'not a list' });
  health.close();
  connection.close();
});
