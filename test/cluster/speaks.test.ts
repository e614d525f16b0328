/** Described windows over three replicas on one Redis. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { spokenWorld } from '../support/spoken.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
}, 30_000);
afterAll(async () => {
  await redis.stop();
});

test.each(['rolling', 'fixed'] as const)(
  'three replicas keep two %s windows together from the first call on',
  async (kind) => {
    const windows = [
      { requests: 4, seconds: 1, kind },
      { requests: 9, seconds: 3, kind },
    ];
    const world = await spokenWorld({ speaks: { windows }, replicas: 3, redis: redis.url });
    expect(await world.burst(12)).toEqual(Array.from({ length: 12 }, () => 200));
    expect(world.throttles()).toBe(0);
    await world.close();
  },
);
