/** The replicas' common memory: when the first of them was back after an absence of Redis. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { defineCommands, runOwn } from '../../src/limiter/redis-commands.ts';
import { presenceKeys } from '../../src/limiter/replica.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

let server: RedisServer;
let redis: Redis<'legacy'>;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis<'legacy'>(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  defineCommands(redis);
});

afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

test('who comes back while nobody is sent waits with the first; who comes later begins anew', async () => {
  /** Milliseconds since the first one came back, as told to a replica that comes back at `now`. */
  const back = async (replica: string, now: number): Promise<number> => {
    const reply = await runOwn(redis, 'presence', presenceKeys, [replica, 'run', '', String(now), '1']);
    return Array.isArray(reply) ? Number(reply[4]) : NaN;
  };
  expect(await back('r1', 10_000)).toBe(0);
  expect(await back('r2', 10_400)).toBe(400);
  expect(await back('r3', 11_299)).toBe(1_299);
  // Away once more, and back.
  expect(await back('r1', 11_900)).toBe(0);
  expect(await back('r2', 12_000)).toBe(100);
});
