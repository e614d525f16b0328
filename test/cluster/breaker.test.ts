/** A permanent refusal over three replicas on one Redis: the upstream is asked once, and one probe ends the refusal for all. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Service } from '../../src/service.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelSimulator,
} from '../../src/simulators/language-model.ts';
import { serviceOf } from '../support/gateway.ts';
import {
  chatBody,
  chatPath,
  fleetConfig,
  send,
  type Answer,
  type FleetConfig,
} from '../support/redis-fleet.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { skippingClock, type SkippingClock } from '../support/skipping-clock.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
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
  /** One chat through replica `n`. */
  chat(n: number): Promise<Answer>;
  metric(n: number): Promise<string>;
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
  for (let n = 0; n < 3; n += 1) {
    const service = await serviceOf(config.yaml(), [], { clock });
    services.push(service);
    open.push(() => service.close());
  }
  const of = (n: number): Service => services[n % 3] as Service;
  let nonce = 0;
  return {
    model,
    clock,
    config,
    chat: (n) =>
      send({
        url: `http://127.0.0.1:${of(n).dataAddress.port}`,
        path: chatPath,
        key: config.keys['acme'] ?? '',
        nonce: String((nonce += 1)),
        body: chatBody,
      }),
    async metric(n) {
      const scrape = await fetch(`http://127.0.0.1:${of(n).adminAddress.port}/metrics`);
      return /^sluice_breaker_open\{upstream="openai"\} (\d)$/m.exec(await scrape.text())?.[1] ?? '';
    },
  };
}

const codes = (answers: readonly Answer[]): string[] => [
  ...new Set(answers.map(({ status, code }) => `${status} ${code}`)),
];

test('a permanent refusal costs at most 2 of 100 calls in 10 s, and one probe closes the breaker when the quota is back', async () => {
  const { model, clock, chat, metric } = await fleet();
  model.configure(noQuota);
  const answers: Answer[] = [];
  for (let n = 0; n < 100; n += 1) {
    void chat(n).then((answer) => answers.push(answer));
    await sleep(100);
  }
  while (answers.length < 100) await sleep(10);
  expect(model.log.length).toBeLessThanOrEqual(2);
  expect(codes(answers).toSorted()).toEqual(['429 ', '429 upstream_refused']);
  expect(await Promise.all([0, 1, 2].map(metric))).toEqual(['1', '1', '1']);

  model.configure(fullQuota);
  clock.skip(60_000);
  const before = model.log.length;
  // Of six calls at once, one is the probe; calls that come after its response are sent.
  const round = await Promise.all([0, 1, 2, 3, 4, 5].map(chat));
  expect(round.filter(({ status }) => status === 200).length).toBeGreaterThanOrEqual(1);
  expect(model.log.length - before).toBe(round.filter(({ status }) => status === 200).length);
  for (let left = 100; left > 0 && (await metric(2)) !== '0'; left -= 1) await sleep(20);
  expect(codes(await Promise.all([0, 1, 2, 3, 4, 5].map(chat)))).toEqual(['200 ']);
  expect(await Promise.all([0, 1, 2].map(metric))).toEqual(['0', '0', '0']);
});

test('only one of three replicas probes an open breaker, and all of them learn that the probe was refused', async () => {
  const { model, clock, chat } = await fleet();
  model.configure(noQuota);
  await chat(0);
  await sleep(100);
  clock.skip(60_000);
  await Promise.all([0, 1, 2, 3, 4, 5, 6, 7, 8].map(chat));
  expect(model.log).toHaveLength(2);
  await sleep(100);
  for (const n of [0, 1, 2]) expect((await chat(n)).retryAfterMs ?? 0).toBeGreaterThan(100_000);
  expect(model.log).toHaveLength(2);
});

test('each replica has a breaker of its own while Redis is unavailable, and the replicas agree when Redis is back', async () => {
  const own = await startRedis();
  open.push(() => own.stop());
  const { model, chat, clock } = await fleet(own.url);
  model.configure(noQuota);
  process.kill(own.pid, 'SIGSTOP');
  const answers: Answer[] = [];
  for (const n of [0, 1, 2]) answers.push(await chat(n));
  for (const n of [0, 1, 2]) answers.push(await chat(n));
  process.kill(own.pid, 'SIGCONT');
  expect(codes(answers.slice(3))).toEqual(['429 upstream_refused']);
  expect(model.log).toHaveLength(3);
  // Replicas compare their breakers with Redis every 5 s, so none of them can be back for longer than that.
  await sleep(2_000);
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
  for (const secret of ['acme', 'sk-sim', 'openai', 'insufficient', config.keys['acme'] ?? 'no key']) {
    expect(monitor.lines.filter((line) => line.includes(secret))).toEqual([]);
  }
});
