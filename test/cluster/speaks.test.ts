/** Described dialects over three replicas on one Redis. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { everyPresetExpected, everyPresetSeen } from '../support/every-preset.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { spokenWorld } from '../support/spoken.ts';
import { tooEarly } from '../support/too-early.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(async () => {
  await redis.stop();
});

test('three replicas keep two windows together, without a word of the responses', async () => {
  const windows = [
    { requests: 4, seconds: 1 },
    { requests: 9, seconds: 3 },
  ];
  // The upstream refuses nothing: what is judged is when calls come.
  const world = await spokenWorld({ speaks: {}, described: { windows }, replicas: 3, redis: redis.url });
  const startedAt = Date.now();
  expect(await world.burst(12)).toEqual(Array.from({ length: 12 }, () => 200));
  expect(tooEarly(world.simulator.log, startedAt, windows)).toEqual([]);
  await world.close();
});

test('three replicas send no more calls than a window has room for, whichever of two has less', async () => {
  const narrow = [
    { requests: 4, seconds: 300 },
    { requests: 9, seconds: 600 },
  ];
  const wide = [
    { requests: 9, seconds: 300 },
    { requests: 4, seconds: 600 },
  ];
  for (const [database, windows] of [narrow, wide].entries()) {
    const url = `${redis.url}/${database + 1}`;
    const world = await spokenWorld({ speaks: {}, described: { windows }, replicas: 3, redis: url });
    const replies = await Promise.all(
      Array.from({ length: 12 }, () => world.call('/v1/things', { prefer: 'wait=10' })),
    );
    const errors = replies.map(({ headers }) => headers.get('sluice-error') ?? 'none').toSorted();
    expect(errors).toEqual([...Array(4).fill('none'), ...Array(8).fill('wait_too_long')]);
    expect(world.simulator.log).toHaveLength(4);
    await world.close();
  }
});

test('calls pass a burst and a closing in every preset, and a refusal for good is asked once for all three replicas', async () => {
  const seen = await everyPresetSeen({ replicas: 3, redis: `${redis.url}/3` });
  expect(seen).toEqual(everyPresetExpected(3));
});
