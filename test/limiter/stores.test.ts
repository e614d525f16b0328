/** What replicas share on one Redis, where a ceiling decides as the embedded store does. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { ceilingKey } from '../../src/ids.ts';
import type { CeilingRef } from '../../src/limiter/policy/ceiling.policy.ts';
import { startRedis } from '../support/redis.ts';
import { startReplica } from '../support/redis-replica.ts';
import { onRedis } from '../support/shared-redis.ts';
import { until } from '../support/until.ts';

const server = onRedis();
const url = (): string => `url: "${server.url}"`;

test('calls over Redis take, give back once, report and forecast under changed limits of the minute and the day what the embedded store does, and leave no key without an expiry', async () => {
  const [shared, embedded] = [await startReplica(url()), await startReplica(null)];
  let histories = 0;
  const limit = fc.constantFrom(null, 1, 2, 3);
  const step = fc.record({ perMinute: limit, perDay: limit, givesBack: fc.boolean() });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 20 }), async (steps) => {
      const key = ceilingKey(`both${(histories += 1)}`);
      const found = [shared, embedded].map(async ({ ceilings }) => {
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
  const { probe } = server;
  for (const key of await probe.keys('*')) expect([key, (await probe.pttl(key)) > 0]).toEqual([key, true]);
  await Promise.all([shared.close(), embedded.close()]);
});

test('sends of the last minute are put back after a loss of all data', async () => {
  const { probe } = server;
  const [a, b] = [await startReplica(url()), await startReplica(url())];
  const ceiling = { key: ceilingKey('kept'), perMinute: 3, perDay: null };
  for (const one of [a, b, a]) await one.ceilings.take(ceiling);
  await probe.flushall();
  await until(async () => (await probe.zcard('sluice:sends:{kept}')) === 3);
  expect((await b.ceilings.take(ceiling)).kind).toBe('refused');
  await Promise.all([a.close(), b.close()]);
});

test('a Redis that evicts keys is refused, with advice on what to set', async () => {
  const redis = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
  await expect(startReplica(`url: "${redis.url}"`)).rejects.toThrow(/maxmemory-policy to noeviction/);
  await redis.stop();
});
