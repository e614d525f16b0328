/** The scripts of ceilings in Redis decide as the policy does. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  ceilingWindowMs,
  expire,
  minuteState,
  takeSlot,
} from '../../../src/limiter/policy/ceiling.policy.ts';
import { listOf } from '../../../src/redis/scripts.ts';
import { runOwn } from '../../../src/limiter/redis/scripts.ts';
import { onRedis } from '../../support/shared-redis.ts';

const server = onRedis();

const run = async (
  ...[script, keys, argv]: readonly [Parameters<typeof runOwn>[1], string, readonly string[]]
) => listOf(await runOwn(server.probe, script, { keys: [`sends:{${keys}}`, `day:{${keys}}`], argv }));
const windowMs = String(ceilingWindowMs);

const step = fc.record({
  gapMs: fc.constantFrom(0, 1, 300, 5_000, 39_900, 59_000, 60_000, 60_150),
  /** How late each of the calls is that ask in one command. */
  late: fc.array(fc.constantFrom(0, 0, 0, 130, 500, 2_000), { minLength: 1, maxLength: 4 }),
  /** Configuration names another limit from now on. */
  limit: fc.constantFrom(null, null, null, null, 1, 2, 3, 7),
});

test('the scripts of ceilings decide like the policy for calls that ask together or leave late, and for changed limits, and report what was sent', async () => {
  let histories = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 40 }), async (steps) => {
      const key = `p${(histories += 1)}`;
      const log: number[] = [];
      let [now, limit] = [1_000_000, 3];
      for (const [at, { gapMs, late, limit: next }] of steps.entries()) {
        now += gapMs;
        limit = next ?? limit;
        const calls = late.flatMap((lateMs, n) => [`c${at}.${n}`, String(lateMs)]);
        const terms = [String(limit), '', windowMs, '86400', String(now)];
        const replied = await run('consume', key, [...terms, ...calls]);
        const expected = late.flatMap((lateMs) => {
          const reply = takeSlot(log, { limit, lateMs }, now);
          return reply.kind === 'taken'
            ? ['taken', minuteState({ log, day: null }, limit, now).nextSlotMs]
            : ['minute', reply.waitMs];
        });
        const words = replied.filter((_word, n) => n % 2 === 0);
        const found = words.map((word, n) => (n % 2 === 0 ? word : Number(word)));
        expect([at, ...found]).toEqual([at, ...expected]);
        const [live, , , ...agesMs] = await run('slots', key, [windowMs, String(now), '1000']);
        const { first } = expire(log, now);
        const sent = log.slice(first);
        expect([live, ...agesMs.map(Number)]).toEqual([sent.length, ...sent.map((at) => now - at)]);
      }
    }),
    { numRuns: 60 },
  );
});

test('they replace what somebody else has put in the place of a ceiling or a lane, and count on', async () => {
  /** How many slots of the minute are taken, and of the day are left. */
  const consumed = async (id: string) => {
    const [kind, taken, , left] = await run('consume', 'f', ['2', '9', windowMs, '86400', '', id, '0']);
    return [kind, taken, left];
  };
  await server.probe.hset('sends:{f}', 'foreign', 1);
  await server.probe.set('day:{f}', 'foreign');
  expect(await run('slots', 'f', [windowMs, '', '9'])).toEqual([0, 0, -1]);
  expect(await consumed('one')).toEqual(['taken', 1, 8]);
  await server.probe.del('day:{f}');
  await server.probe.lpush('day:{f}', 'foreign');
  expect(await consumed('two')).toEqual(['taken', 2, 8]);
  expect(await server.probe.ttl('day:{f}')).toBeGreaterThan(86_000);
  const take = () => runOwn(server.probe, 'takelane', { keys: ['lane:f'], argv: ['token', '1000'] });
  await server.probe.lpush('lane:f', 'foreign');
  expect(await take()).toBeNull();
  await server.probe.set('lane:f', 'foreign');
  expect(await take()).toBeNull();
});

test('they report of a window with many sends every so many of them, and the last', async () => {
  const times = Array.from({ length: 25 }, (_, n) => [String(1_000 + n), `c${n}`]).flat();
  await server.probe.zadd('sends:{many}', ...times);
  const [live, , , ...agesMs] = await run('slots', 'many', [windowMs, '2000', '10']);
  expect(live).toBe(25);
  // Every third send, and the last: of each group of three the latest.
  expect(agesMs.map(Number)).toEqual([2, 5, 8, 11, 14, 17, 20, 23, 24].map((n) => 1_000 - n));
});

test('they free a ceiling a window later whose sends lie in the future, because the clock of Redis was set back', async () => {
  const sends = 'sends:{back}';
  const time = async (): Promise<number> => {
    const [seconds = 0, micros = 0] = (await server.probe.time()).map(Number);
    return seconds * 1_000 + micros / 1_000;
  };
  const now = await time();
  await server.probe.zadd(sends, now + 300_000, 'a', now + 310_000, 'b', now + 1_000, 'ahead');
  await runOwn(server.probe, 'restore', { keys: [sends], argv: [windowMs, '20', 'b', '30', 'c'] });
  const later = String((await time()) + 1_001 + ceilingWindowMs);
  expect(await server.probe.zcard(sends)).toBe(4);
  expect(Number(await server.probe.zscore(sends, 'ahead'))).toBeCloseTo(now + 1_000, 0);
  expect((await run('slots', 'back', [windowMs, later, '1000']))[0]).toBe(0);
});
