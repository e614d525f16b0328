/** Renewals over three replicas and a real Redis, under load: one token for all, and no call notices. */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock } from '../../src/clock.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { chatBody, chatPath } from '../support/redis-fleet.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { startTokenEndpoint, type Manner, type TokenEndpoint } from '../support/token-endpoint.ts';
import {
  clients,
  load,
  mostAtOnce,
  replicaOf,
  shownAt,
  startReplicas,
  startUpstreams,
  yamlOf,
  type Replicas,
  type Upstreams,
} from './replicas.ts';

/** How long calls come while the endpoint has troubles; `verify:long`: three minutes. */
const renewalMs = process.env['SLUICE_TESTS'] === 'long' ? 180_000 : 10_000;
let redis: RedisServer;
let probe: Redis;
let upstreams: Upstreams;
let endpoint: TokenEndpoint;
let replicas: Replicas;
const logs: string[] = [];

beforeAll(async () => {
  redis = await startRedis();
  probe = new Redis(redis.port);
});
afterAll(async () => {
  probe.disconnect();
  await redis.stop();
});
beforeEach(async () => {
  await probe.flushall();
  upstreams = await startUpstreams();
  endpoint = await startTokenEndpoint({
    lifeSeconds: 2,
    isRotating: true,
    client: { id: 'canary-client', secret: 'canary-secret' },
    onChange: (valid) => upstreams.accept(valid),
  });
  const oauth = `{ oauth: { tokenUrl: "${endpoint.url}", clientId: canary-client, clientSecret: canary-secret } }`;
  const yaml = yamlOf(redis, upstreams, { shop: oauth, model: oauth });
  replicas = await startReplicas([yaml, yaml, yaml], logs);
});
afterEach(async () => {
  await replicas.close();
  await endpoint.close();
  await upstreams.close();
});

/** How often each token was refused. */
const refusals = (log: readonly LogEntry[]): number[] => {
  const refused = log.filter(({ status }) => status === 401);
  return [0, ...[...Map.groupBy(refused, (entry) => entry.key).values()].map(({ length }) => length)];
};

test('one token is used, which revokes the one before: no call fails, and one call is in flight across every renewal', async () => {
  const monitor = await monitorRedis(redis.port);
  const before = endpoint.issued.length;
  expect(await load(replicas.urls, () => endpoint.issued.length < before + 5)).toEqual([]);
  monitor.stop();
  const { issued, maxAtOnce } = endpoint;
  const { log } = upstreams.shop;
  expect([mostAtOnce(log), maxAtOnce]).toEqual([1, 1]);
  // Replicas that fetched for themselves would each send a token of their own.
  const accepted = Map.groupBy(
    log.filter(({ status }) => status === 200),
    (entry) => entry.key,
  );
  const senders = [...accepted.values()].map((entries) => new Set(entries.map(replicaOf)).size);
  expect(senders.filter((count) => count > 1).length).toBeGreaterThan(senders.length / 2);
  // The others hear of a new token at once: a call that was on its way meanwhile is refused, and sent again. A busy machine may
  // keep one from hearing of it before its call goes; if none of them heard, each would be refused once for every token.
  expect(Math.max(...refusals(log))).toBeLessThanOrEqual(2);
  expect(refusals(log).filter((times) => times > 1).length).toBeLessThan(issued.length / 2);
  const pages = await shownAt(replicas.adminUrls);
  expect(pages).toMatch(/renewals_total\{upstream="shop",outcome="shared"\} [1-9]/);
  const held = (await probe.keys('*')).map(async (name) => `${name} ${(await probe.dump(name)) ?? ''}`);
  const shown = [...logs, pages, ...monitor.lines, ...(await Promise.all(held))].join('\n');
  for (const secret of ['canary', endpoint.url, ...issued]) expect(shown).not.toContain(secret);
});

test('orders and chats go on while the endpoint fails, is slow, breaks off and ends the token before: no call fails', async () => {
  const failing: Manner = { kind: 'answer', status: 500, body: 'oops' };
  const throttled: Manner = { kind: 'answer', status: 429, body: '', headers: { 'retry-after': '1' } };
  const [slow, good, cut]: Manner[] = [{ kind: 'issue', afterMs: 900 }, { kind: 'issue' }, { kind: 'cut' }];
  const rough = [good, failing, good, slow, cut, failing, slow, throttled, good].filter((each) => !!each);
  const untilMs = systemClock.monotonic() + renewalMs;
  endpoint.respond(...Array.from({ length: Math.ceil(renewalMs / 9_000) }, () => rough).flat());
  const goesOn = (): boolean => systemClock.monotonic() < untilMs;
  const chats = { path: chatPath, body: chatBody };
  const loads = [undefined, chats].map((call) =>
    load(replicas.urls, goesOn, { ...(call && { call }), pauseMs: 20 }),
  );
  expect((await Promise.all(loads)).flat()).toEqual([]);
  const { issued, maxAtOnce, requests } = endpoint;
  expect(requests.length).toBeGreaterThan(issued.length);
  expect(issued.length).toBeGreaterThan(renewalMs / 4_000);
  const { shop, model } = upstreams;
  expect([maxAtOnce, mostAtOnce(shop.log)]).toEqual([1, 1]);
  // A replica that has not heard yet of the token after finds out by a call. Chats are in flight side by side: those that had left are refused, too.
  expect(Math.max(...refusals(shop.log))).toBeLessThanOrEqual(3);
  expect(Math.max(...refusals(model.log))).toBeLessThanOrEqual(clients);
  expect([...shop.log, ...model.log].filter(({ status }) => status === 429)).toEqual([]);
  // What was known of the quotas went on: no replica has begun another bucket, which would have been probed.
  expect(replicas.buckets().map(({ length }) => length)).toEqual([2, 2, 2]);
});
