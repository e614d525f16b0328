/** The scripts of the ceiling decide as their policy does: late calls, limits that change, forecasts. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { Redis } from 'ioredis';
import { ceilingWindowMs, expire, takeSlot } from '../../../../src/limiter/policy/ceiling.policy.ts';
import { listOf } from '../../../../src/redis/malformed-reply.ts';
import { runOwn } from '../../../../src/limiter/redis/scripts.ts';
import { startRedis, type RedisServer } from '../../../support/redis.ts';

let server: RedisServer;
let client: Redis;
beforeAll(async () => {
  server = await startRedis();
  client = new Redis(server.port);
});
afterAll(async () => {
  client.disconnect();
  await server.stop();
});

const step = fc.record({
  gapMs: fc.constantFrom(0, 1, 300, 5_000, 39_900, 59_000, 60_000, 60_150),
  /** How late each of the calls is that ask in one command. */
  late: fc.array(fc.constantFrom(0, 0, 0, 130, 500, 2_000), { minLength: 1, maxLength: 4 }),
  /** Configuration names another limit from now on. */
  limit: fc.constantFrom(null, null, null, null, 1, 2, 3, 7),
});
let histories = 0;

test('the ceiling scripts decide like the policy for calls that ask together or leave late, and for changed limits, and report what was sent', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 40 }), async (steps) => {
      const keys = [`sends:{p${(histories += 1)}}`, `day:{p${histories}}`];
      const log: number[] = [];
      let now = 1_000_000;
      let limit = 3;
      for (const [at, { gapMs, late, limit: next }] of steps.entries()) {
        now += gapMs;
        limit = next ?? limit;
        const times = [String(ceilingWindowMs), '86400', String(now)];
        const calls = late.flatMap((lateMs, n) => [`c${at}.${n}`, String(lateMs)]);
        const argv = [String(limit), '', ...times, ...calls];
        const replied = listOf(await runOwn(client, 'consume', { keys, argv }));
        const replies = late.map((lateMs) => takeSlot(log, { limit, lateMs }, now));
        expect([
          at,
          ...replied
            .filter((_word, n) => n % 4 !== 1 && n % 4 !== 3)
            .map((word) => (Number(word) >= 0 ? Number(word) : word)),
        ]).toEqual([
          at,
          ...replies.flatMap((reply) =>
            reply.kind === 'taken' ? ['taken', reply.nextSlotMs] : ['minute', reply.waitMs],
          ),
        ]);
        const asked = [String(ceilingWindowMs), String(now), '1000'];
        const [live, , , ...agesMs] = listOf(await runOwn(client, 'slots', { keys, argv: asked }));
        const { first } = expire(log, now);
        expect([live, ...agesMs.map(Number)]).toEqual([
          log.length - first,
          ...log.slice(first).map((at) => now - at),
        ]);
      }
    }),
    { numRuns: 60 },
  );
});

test('of a window with many sends the script reports every so many of them, and the last', async () => {
  const keys = ['sends:{many}', 'day:{many}'];
  const times = Array.from({ length: 25 }, (_, n) => [String(1_000 + n), `c${n}`]).flat();
  await client.zadd('sends:{many}', ...times);
  const argv = [String(ceilingWindowMs), '2000', '10'];
  const [live, , , ...agesMs] = listOf(await runOwn(client, 'slots', { keys, argv }));
  expect(live).toBe(25);
  // Every third send, and the last: of each group of three the latest.
  expect(agesMs.map(Number)).toEqual([2, 5, 8, 11, 14, 17, 20, 23, 24].map((n) => 1_000 - n));
});

test('a ceiling whose sends lie in the future, because the clock of Redis was set back, is free again a window later', async () => {
  const sends = 'sends:{back}';
  const time = async (): Promise<number> => {
    const [seconds = 0, micros = 0] = (await client.time()).map(Number);
    return seconds * 1_000 + micros / 1_000;
  };
  const now = await time();
  await client.zadd(sends, now + 300_000, 'a', now + 310_000, 'b', now + 1_000, 'ahead');
  await runOwn(client, 'restore', { keys: [sends], argv: [String(ceilingWindowMs), '20', 'b', '30', 'c'] });
  const later = [String(ceilingWindowMs), String((await time()) + 1_001 + ceilingWindowMs), '1000'];
  expect(await client.zcard(sends)).toBe(4);
  expect(Number(await client.zscore(sends, 'ahead'))).toBeCloseTo(now + 1_000, 0);
  const [live] = listOf(await runOwn(client, 'slots', { keys: [sends, 'day:{back}'], argv: later }));
  expect(live).toBe(0);
});
