/** What one replica has learned of token charges, another one expects of its next call. Over one Redis, which keeps none of it. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { setTimeout as sleep } from 'node:timers/promises';
import { systemClock } from '../../../src/clock.ts';
import type { TokenGuess } from '../../../src/dispatch/token-estimate.policy.ts';
import { TokenEstimates } from '../../../src/dispatch/token-estimates.ts';
import { monitorRedis } from '../../support/redis-monitor.ts';
import { startReplica, type TestReplica } from '../../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { until } from '../../support/until.ts';

let server: RedisServer;
let probe: Redis;
const open: TestReplica[] = [];
beforeAll(async () => {
  server = await startRedis();
  probe = new Redis(server.port);
});
afterEach(async () => {
  for (const replica of open.splice(0)) await replica.close();
  await probe.flushall();
});
afterAll(async () => {
  probe.disconnect();
  await server.stop();
});

async function replica() {
  const started = await startReplica(`url: "${server.url}", commandTimeoutMs: 2000`);
  open.push(started);
  return { tokens: new TokenEstimates(systemClock, started.estimates), bugs: started.bugs };
}

const guess: TokenGuess = { prompt: 150_000, marked: 0, output: 4_000, apart: true };
const call = { guess, lane: 'lane1', beginning: 'beginning1' };
const usage = { prompt: 150_000, kept: 148_000, input: 2_000, output: 200, total: 2_200 };
const response = { meters: [], throttle: null, usage };

test('a prompt that one replica has seen cached is not reserved in full by another one', async () => {
  const [one, other] = [await replica(), await replica()];
  expect(other.tokens.expected(call).input_tokens).toBe(150_000);
  // A replica hears of the others with its next heartbeat.
  await until(() => {
    one.tokens.learn(call, response, null);
    return other.tokens.expected(call).input_tokens === 2_000;
  });
  expect(other.tokens.expected({ ...call, beginning: 'another' }).output_tokens).toBeLessThan(4_001);
  const refusal = { meters: [], throttle: { kind: 'rate', waitMs: 1, meter: 'input_tokens' } as const };
  other.tokens.learn(call, { ...refusal, requestedTokens: 40_000 }, null);
  await until(() => one.tokens.expected(call).input_tokens === 40_000);
  expect([...one.bugs, ...other.bugs]).toEqual([]);
});

test('units that a refusal showed one replica beyond its estimate are reserved by another replica at once', async () => {
  const [one, other] = [await replica(), await replica()];
  const ruled = { ...call, guess: { prompt: 600, marked: 0, output: 400, apart: false } };
  const level = { lowest: 1, highest: 2 };
  const stating = {
    ...response,
    meters: [{ meter: 'tokens', limit: 30_000, windowMs: 60_000, level } as const],
  };
  const refusal = { meters: [], throttle: { kind: 'rate', waitMs: 1, meter: 'tokens' } as const };
  await until(() => {
    one.tokens.learn(ruled, stating, null);
    one.tokens.learn(ruled, { ...refusal, requestedTokens: 1_600 }, null);
    return other.tokens.expected(ruled).tokens === 1_600;
  });
  await until(() => (other.tokens.expected({ ...ruled, beginning: 'another' }).tokens ?? 0) > 1_100);
  expect([...one.bugs, ...other.bugs]).toEqual([]);
});

test('a replica without others publishes no estimates, and Redis keeps none', async () => {
  const monitor = await monitorRedis(server.port);
  const { tokens } = await replica();
  for (let n = 0; n < 20; n += 1) tokens.learn({ ...call, beginning: `b${n}` }, response, null);
  await sleep(300);
  expect(monitor.lines.filter((line) => line.includes(' estimates '))).toEqual([]);
  monitor.stop();
  expect((await probe.keys('*')).filter((key) => /estimate|lane1|b1/.test(key))).toEqual([]);
});
