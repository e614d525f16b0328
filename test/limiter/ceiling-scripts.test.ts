/** The scripts of the ceiling decide as their policy does: late calls, limits that change, forecasts. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { Redis } from 'ioredis';
import { ceilingWindowMs, placeInMs, takePlace } from '../../src/limiter/ceiling.policy.ts';
import { listOf } from '../../src/limiter/malformed-reply.ts';
import { defineCommands, runOwn } from '../../src/limiter/redis-commands.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

let server: RedisServer;
let client: Redis;
beforeAll(async () => {
  server = await startRedis();
  client = new Redis(server.port);
  defineCommands(client);
});
afterAll(async () => {
  client.disconnect();
  await server.stop();
});

const step = fc.record({
  gapMs: fc.constantFrom(0, 1, 300, 5_000, 39_900, 59_000, 60_000, 60_150),
  lateMs: fc.constantFrom(0, 0, 0, 130, 500, 2_000),
  /** Configuration names another limit from now on. */
  limit: fc.constantFrom(null, null, null, null, 1, 2, 3, 7),
});
const positions = [1, 2, 3, 4, 5, 8, 15];
let histories = 0;

test('calls that leave late and limits that go up and down count as in the policy', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 40 }), async (steps) => {
      const keys = [`sends:{p${(histories += 1)}}`, `day:{p${histories}}`];
      const log: number[] = [];
      let now = 1_000_000;
      let limit = 3;
      for (const [at, { gapMs, lateMs, limit: next }] of steps.entries()) {
        now += gapMs;
        limit = next ?? limit;
        const times = [String(ceilingWindowMs), '86400', String(now), String(lateMs)];
        const taking = await runOwn(client, 'consume', keys, [`c${at}`, String(limit), '', ...times]);
        const [kind, , ms] = listOf(taking);
        const reply = takePlace(log, limit, now, lateMs);
        expect([at, kind, Number(ms)]).toEqual(
          reply.kind === 'taken' ? [at, 'taken', reply.nextPlaceMs] : [at, 'minute', reply.waitMs],
        );
        const asked = [String(limit), String(ceilingWindowMs), String(now), ...positions.map(String)];
        const [live, , , , ...waits] = listOf(await runOwn(client, 'places', keys, asked));
        expect([live, ...waits.map(Number)]).toEqual([
          log.length,
          ...positions.map((k) => placeInMs(log, limit, k, now)),
        ]);
      }
    }),
    { numRuns: 60 },
  );
});
