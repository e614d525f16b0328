/** A permanent refusal over three replicas on one Redis: the upstream is asked once, and one probe ends the refusal for all. */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Service } from '../../src/service.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import { serviceOf } from '../support/gateway.ts';
import {
  chatBody,
  chatPath,
  fleetConfig,
  send,
  type CallResponse,
  type FleetConfig,
} from '../support/redis-fleet.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { skippingClock, type SkippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
beforeEach(async () => {
  // What a test before left open is no news to a replica that starts.
  const client = new Redis(redis.url);
  await client.flushall();
  client.disconnect();
});
const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(() => redis.stop());

const noQuota = { quotaState: { 'org-sim': 'insufficient_quota', proj_sim: 'insufficient_quota' } } as const;
const fullQuota = { quotaState: { 'org-sim': 'ok', proj_sim: 'ok' } } as const;

interface Fleet {
  readonly model: LanguageModelSimulator;
  readonly clock: SkippingClock;
  readonly config: FleetConfig;
  /** Starts another replica. */
  join(): Promise<void>;
  /** One chat through replica `n`. */
  chat(n: number): Promise<CallResponse>;
  metric(n: number): Promise<string>;
  /** Resolves when every replica shows the breaker as open (1) or closed (0). */
  shown(value: '0' | '1'): Promise<void>;
  /** Resolves when every replica uses Redis. */
  together(): Promise<void>;
}

async function fleet(url = redis.url): Promise<Fleet> {
  const clock = skippingClock();
  const model = createLanguageModelSimulator({
    models: { 'gpt-4o': { rpm: 60_000, tpm: 10_000_000 } },
    latency: { baseMs: 5, perTokenMs: 0, jitter: 0 },
  });
  const { url: modelUrl } = await model.listen(0);
  open.push(() => model.close());
  const config = fleetConfig({
    redis: `url: "${url}", commandTimeoutMs: 2000`,
    modelUrl,
    modelLimits: 'requestsPerMinute: 100000, requestsPerDay: 1000000, tokensPerMinute: 10000000',
  });
  const services: Service[] = [];
  const join = async (): Promise<void> => {
    const service = await serviceOf(config.yaml(), [], { clock });
    services.push(service);
    open.push(() => service.close());
  };
  for (let n = 0; n < 3; n += 1) await join();
  const of = (n: number): Service => services[n % services.length] as Service;
  const scrape = async (n: number): Promise<string> =>
    (await fetch(`http://127.0.0.1:${of(n).adminAddress.port}/metrics`)).text();
  const metric = async (n: number): Promise<string> =>
    /^sluice_breaker_open\{upstream="openai"\} (\d)$/m.exec(await scrape(n))?.[1] ?? '';
  const everywhere = (holds: (n: number) => Promise<boolean>): Promise<void> =>
    until(async () => (await Promise.all(services.map((_, n) => holds(n)))).every(Boolean));
  let nonce = 0;
  return {
    model,
    clock,
    config,
    join,
    chat: (n) =>
      send({
        url: `http://127.0.0.1:${of(n).dataAddress.port}`,
        path: chatPath,
        key: config.keys['acme'] ?? '',
        nonce: String((nonce += 1)),
        body: chatBody,
      }),
    metric,
    shown: (value) => everywhere(async (n) => (await metric(n)) === value),
    together: () =>
      everywhere(async (n) => (await scrape(n)).includes('sluice_limiter_mode{mode="redis"} 1')),
  };
}

const codes = (responses: readonly CallResponse[]): string[] => [
  ...new Set(responses.map(({ status, code }) => `${status} ${code}`)),
];

test('a permanent refusal costs at most 2 of 100 calls in 10 s, and one probe closes the breaker when the quota is back', async () => {
  const { model, clock, chat, metric, shown } = await fleet();
  model.configure(noQuota);
  const responses: CallResponse[] = [];
  for (let n = 0; n < 100; n += 1) {
    responses.push(await chat(n));
    // The second call may come to a replica that has not heard of the first response, the third does not: 100 ms are long for that.
    if (n === 1) await shown('1');
    clock.skip(100);
  }
  expect(model.log.length).toBeLessThanOrEqual(2);
  expect(codes(responses).toSorted()).toEqual(['429 ', '429 upstream_refused']);
  expect(await Promise.all([0, 1, 2].map(metric))).toEqual(['1', '1', '1']);

  model.configure(fullQuota);
  clock.skip(60_000);
  const before = model.log.length;
  // Of six calls at once, one is the probe; calls that come after its response are sent.
  const round = await Promise.all([0, 1, 2, 3, 4, 5].map(chat));
  expect(round.filter(({ status }) => status === 200).length).toBeGreaterThanOrEqual(1);
  expect(model.log.length - before).toBe(round.filter(({ status }) => status === 200).length);
  await shown('0');
  expect(codes(await Promise.all([0, 1, 2, 3, 4, 5].map(chat)))).toEqual(['200 ']);
  expect(await Promise.all([0, 1, 2].map(metric))).toEqual(['0', '0', '0']);
});

test('only one of three replicas probes an open breaker, and all of them learn that the probe was refused', async () => {
  const { model, clock, chat, shown } = await fleet();
  model.configure(noQuota);
  await chat(0);
  await shown('1');
  clock.skip(60_000);
  await Promise.all([0, 1, 2, 3, 4, 5, 6, 7, 8].map(chat));
  expect(model.log).toHaveLength(2);
  for (const n of [0, 1, 2]) await until(async () => ((await chat(n)).retryAfterMs ?? 0) > 100_000);
  expect(model.log).toHaveLength(2);
});

test('a replica that starts while a breaker is open sends no call that it concerns, and one that starts after its end sends all', async () => {
  const { model, clock, chat, join } = await fleet();
  model.configure(noQuota);
  await chat(0);
  await join();
  expect(codes(await Promise.all([3, 3, 3].map(chat)))).toEqual(['429 upstream_refused']);
  expect(model.log).toHaveLength(1);
  model.configure(fullQuota);
  clock.skip(60_000);
  expect((await chat(0)).status).toBe(200);
  await join();
  expect(codes(await Promise.all([4, 4, 4].map(chat)))).toEqual(['200 ']);
});

test('each replica has a breaker of its own while Redis is unavailable, and the replicas agree when Redis is back', async () => {
  const own = await startRedis();
  open.push(() => own.stop());
  const { model, chat, clock, together } = await fleet(own.url);
  model.configure(noQuota);
  process.kill(own.pid, 'SIGSTOP');
  const responses: CallResponse[] = [];
  for (const n of [0, 1, 2]) responses.push(await chat(n));
  for (const n of [0, 1, 2]) responses.push(await chat(n));
  process.kill(own.pid, 'SIGCONT');
  expect(codes(responses.slice(3))).toEqual(['429 upstream_refused']);
  expect(model.log).toHaveLength(3);
  // Replicas compare their breakers with Redis every 5 s, so none of them can be back for longer than that.
  await together();
  clock.skip(5_000);
  await sleep(500);
  clock.skip(55_000);
  await Promise.all([0, 1, 2].map(chat));
  expect(model.log.length).toBeLessThanOrEqual(4);
});

test('Redis sees a breaker under digests only, and nothing of breakers while none is open', async () => {
  const { model, chat, config } = await fleet();
  const monitor = await monitorRedis(redis.port);
  open.push(() => Promise.resolve(monitor.stop()));
  await chat(0);
  expect(monitor.lines.filter((line) => line.includes('breaker'))).toEqual([]);
  model.configure(noQuota);
  await chat(0);
  await sleep(200);
  expect(monitor.lines.filter((line) => line.includes('breaker')).length).toBeGreaterThan(0);
  for (const secret of ['acme', 'sk-sim', 'openai', 'exceeded your', config.keys['acme'] ?? 'no key']) {
    expect(monitor.lines.filter((line) => line.includes(secret))).toEqual([]);
  }
});
