/** Described windows over three replicas on one Redis. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { partsOf } from '../../src/config/speaks-build.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { spokenWorld } from '../support/spoken.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(async () => {
  await redis.stop();
});

test('three replicas keep two windows together, without a word of the answers', async () => {
  const windows = [
    { requests: 4, seconds: 1 },
    { requests: 9, seconds: 3 },
  ];
  const world = await spokenWorld({ speaks: { windows }, replicas: 3, redis: redis.url });
  expect(await world.burst(12)).toEqual(Array.from({ length: 12 }, () => 200));
  expect(world.throttles()).toBe(0);
  await world.close();
});

test.each(['github', 'hubspot', 'airtable'] as const)(
  'three replicas pass a burst and a closing in the words of %s',
  async (preset) => {
    const parts = partsOf(preset);
    const changes = {
      windows: [{ requests: 5, seconds: 1 }],
      ...(parts.penaltySeconds === undefined ? {} : { penaltySeconds: 1 }),
    };
    const world = await spokenWorld({
      speaks: { ...parts, ...changes },
      described: { preset, ...changes },
      ...(parts.throttledBy === undefined ? {} : { refusesBy: 0 }),
      retryAfter: true,
      replicas: 3,
      redis: `${redis.url}/${['github', 'hubspot', 'airtable'].indexOf(preset) + 1}`,
    });
    await world.call();
    world.simulator.closeFor(2_000);
    expect(await world.burst(7)).toEqual(Array.from({ length: 7 }, () => 200));
    expect(world.throttles()).toBeGreaterThan(0);
    await world.close();
  },
);
