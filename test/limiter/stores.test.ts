/** What two replicas share on one Redis, where a ceiling decides as the embedded store does. */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { Redis } from 'ioredis';
import { ceilingKey } from '../../src/ids.ts';
import type { CeilingRef } from '../../src/limiter/policy/ceiling.policy.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';
import { until } from '../support/until.ts';

describe('two replicas on one Redis', () => {
  let redis: RedisServer;
  let probe: Redis;
  let a: TestReplica;
  let b: TestReplica;
  beforeAll(async () => {
    redis = await startRedis();
    [a, b] = await Promise.all([startReplica(`url: "${redis.url}"`), startReplica(`url: "${redis.url}"`)]);
    probe = new Redis(redis.port);
  });
  afterAll(async () => {
    probe.disconnect();
    await Promise.all([a.close(), b.close()]);
    await redis.stop();
  });

  test('take, give back once, report and forecast under changed limits of the minute and the day what the embedded store does', async () => {
    const embedded = await startReplica(null);
    let histories = 0;
    const limit = fc.constantFrom(null, 1, 2, 3);
    const step = fc.record({ perMinute: limit, perDay: limit, givesBack: fc.boolean() });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 20 }), async (steps) => {
        const key = ceilingKey(`both${(histories += 1)}`);
        const found = [a, embedded].map(async ({ ceilings }) => {
          const seen: unknown[] = [];
          let isHeard = false;
          ceilings.listen((of) => (isHeard ||= of === key));
          const taken: [CeilingRef, Parameters<typeof ceilings.giveSlotBack>[1]][] = [];
          for (const { givesBack, ...limits } of steps) {
            const of = { key, ...limits };
            const reply = await ceilings.take(of);
            if (reply.kind === 'taken') taken.push([of, reply.slot]);
            seen.push({ ...reply, slot: null });
            const last = givesBack ? taken.pop() : undefined;
            for (let times = 0; last !== undefined && times < 2; times += 1)
              await ceilings.giveSlotBack(...last);
          }
          const of = { key, perMinute: 2, perDay: 3 };
          seen.push(isHeard, await ceilings.state(of), await ceilings.dayState(of));
          const forecasts = [undefined, 10_000].map((agoMs) => ceilings.forecast(of, [1, 2, 3, 4], agoMs));
          return [...seen, ...(await Promise.all(forecasts))];
        });
        const [overRedis, inMemory] = await Promise.all(found);
        // Times to half a minute: they are windows and days, of which little has passed.
        const rough = (_name: string, value: unknown): unknown =>
          typeof value === 'number' && value > 100 ? Math.round(value / 30_000) : value;
        expect(JSON.parse(JSON.stringify(overRedis, rough))).toEqual(
          JSON.parse(JSON.stringify(inMemory, rough)),
        );
      }),
      { numRuns: 40 },
    );
    await embedded.close();
  });

  test('share a ceiling, whichever of them asks, and write nothing when it refuses', async () => {
    const ceiling = { key: ceilingKey('shared'), perMinute: 4, perDay: 100 };
    const replies: string[] = [];
    for (const one of [a, b, a, b, a, b]) replies.push((await one.ceilings.take(ceiling)).kind);
    expect(replies).toEqual(['taken', 'taken', 'taken', 'taken', 'refused', 'refused']);
    // The four calls that were sent since stood before the fifth: it needs one window, not two.
    const [hold] = await b.ceilings.forecast(ceiling, [5], 10_000);
    expect(hold?.waitMs).toBeLessThan(61_000);
    expect(await probe.zcard('sluice:sends:{shared}')).toBe(4);
    expect(await probe.get('sluice:day:{shared}')).toBe('4');
  });

  test('leave no key without an expiry', async () => {
    for (const key of await probe.keys('*')) expect([key, (await probe.pttl(key)) > 0]).toEqual([key, true]);
  });

  test('put sends of the last minute back after a loss of all data', async () => {
    const ceiling = { key: ceilingKey('kept'), perMinute: 3, perDay: null };
    for (const one of [a, b, a]) await one.ceilings.take(ceiling);
    await probe.flushall();
    await until(async () => (await probe.zcard('sluice:sends:{kept}')) === 3);
    expect((await b.ceilings.take(ceiling)).kind).toBe('refused');
  });
});

test('a Redis that evicts keys is refused, with advice on what to set', async () => {
  const redis = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
  await expect(startReplica(`url: "${redis.url}"`)).rejects.toThrow(/maxmemory-policy to noeviction/);
  await redis.stop();
});
