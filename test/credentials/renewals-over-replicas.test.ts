/** Renewals over three replicas and a real Redis, under load: one token for all, and no call notices. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock } from '../../src/clock.ts';
import type { Service } from '../../src/service.ts';
import { createCommerceSimulator, type CommerceSimulator } from '../../simulators/commerce.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { serviceOf } from '../support/gateway.ts';
import { chatBody, chatPath, clientAgent, ordersPath, pause, send } from '../support/redis-fleet.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { startTokenEndpoint, type Manner, type TokenEndpoint } from '../support/token-endpoint.ts';
import { until } from '../support/until.ts';

const labelKey = 'a label key for tests only';
/** How long calls come while the endpoint has troubles; `verify:long`: three minutes. */
const renewalMs = process.env['SLUICE_TESTS'] === 'long' ? 180_000 : 10_000;
let redis: RedisServer;
let probe: Redis;
const agent = clientAgent();

beforeAll(async () => {
  redis = await startRedis();
  probe = new Redis(redis.port);
});
beforeEach(() => probe.flushall());
afterAll(async () => {
  agent.destroy();
  probe.disconnect();
  await redis.stop();
});

/** All that Redis holds, as text. */
async function everythingHeld(): Promise<string> {
  const texts: string[] = [];
  for (const key of await probe.keys('*')) {
    const type = await probe.type(key);
    texts.push(key, type === 'string' ? ((await probe.get(key)) ?? '') : '');
    if (type === 'hash') texts.push(JSON.stringify(await probe.hgetall(key)));
    if (type === 'zset') texts.push((await probe.zrange(key, '0', '-1')).join(' '));
  }
  return texts.join('\n');
}

describe('three replicas with one credential', () => {
  let services: readonly Service[] = [];
  let shop: CommerceSimulator;
  let model: LanguageModelSimulator;
  let endpoint: TokenEndpoint;
  const logs: string[] = [];
  const { key, hash } = createKey();
  const storesOf = (tokens: readonly string[]) => ({
    '127.0.0.1': { plan: { limit: 4_000, leak: 200 }, apps: { 'app-sim': [...tokens] } },
  });
  const orgsOf = (tokens: readonly string[]) => ({
    'org-sim': { projects: { proj_sim: { keys: [...tokens] } } },
  });

  beforeEach(async () => {
    shop = createCommerceSimulator({ latency: { minMs: 1, maxMs: 3 }, stores: storesOf([]) });
    const { url } = await shop.listen();
    model = createLanguageModelSimulator({
      models: { 'gpt-4o': { rpm: 600_000, tpm: 100_000_000 } },
      latency: { baseMs: 1, perTokenMs: 0, jitter: 0 },
      orgs: orgsOf([]),
    });
    const { url: modelUrl } = await model.listen();
    endpoint = await startTokenEndpoint({
      lifeSeconds: 2,
      isRotating: true,
      client: { id: 'canary-client', secret: 'canary-secret' },
      onChange(valid) {
        shop.configure({ stores: storesOf(valid) });
        model.configure({ orgs: orgsOf(valid) });
      },
    });
    const oauth = `{ tokenUrl: "${endpoint.url}", clientId: canary-client, clientSecret: canary-secret }`;
    const yaml = [
      'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }',
      `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }`,
      `privacy: { labelKey: "${labelKey}" }`,
      'upstreams:',
      '  shop:',
      '    kind: commerce',
      `    origins: ["${url}"]`,
      '    allowPrivateAddresses: true',
      `    credential: { oauth: ${oauth} }`,
      '    limits: { requestsPerMinute: 100000, bucket: { capacity: 4000, leakPerSecond: 200 } }',
      '  openai:',
      '    kind: language-model',
      `    origins: ["${modelUrl}"]`,
      '    allowPrivateAddresses: true',
      `    credential: { oauth: ${oauth} }`,
      '    limits: { requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000 }',
      `workspaces:\n  acme: { keys: ["${hash}"] }`,
    ].join('\n');
    services = await Promise.all([1, 2, 3].map(() => serviceOf(yaml, logs)));
  });
  afterEach(async () => {
    await Promise.all(services.map((service) => service.close()));
    await endpoint.close();
    await shop.close();
    await model.close();
  });

  type CallResponses = Awaited<ReturnType<typeof send>>[];
  /** A client that sends the next call, to the next replica, `pauseMs` after the response to the last one. */
  async function client(
    at: number,
    call: { readonly path: string; readonly body?: unknown },
    { responses, goesOn, pauseMs }: { responses: CallResponses; goesOn: () => boolean; pauseMs: number },
  ): Promise<void> {
    for (let n = 0; goesOn(); n += 1) {
      const nonce = `${at}-${n}`;
      const url = `http://127.0.0.1:${services[replicaOf(nonce)]?.dataAddress.port ?? 0}`;
      const headers = { prefer: 'wait=60' };
      responses.push(await send({ ...call, url, key, nonce, agent, headers }));
      await pause(pauseMs);
    }
  }
  const replicaOf = (nonce: string): number =>
    nonce.split('-').reduce((sum, part) => sum + Number(part), 0) % 3;
  const orders = { path: `${ordersPath}?limit=1` };
  const chats = { path: chatPath, body: chatBody };
  const clients = 6;
  /** How often each token was refused. */
  const refusals = (log: readonly LogEntry[]): number[] => {
    const refused = log.filter(({ status }) => status === 401);
    return [...Map.groupBy(refused, (entry) => entry.key).values()].map(({ length }) => length);
  };

  test('use one token, which revokes the one before: no call fails, and one call is in flight across every renewal', async () => {
    const monitor = await monitorRedis(redis.port);
    const responses: CallResponses = [];
    // Clients that each send the next call when the last one is answered: as much load as the machine carries.
    const before = endpoint.issued.length;
    const load = { responses, goesOn: () => endpoint.issued.length < before + 5, pauseMs: 10 };
    await Promise.all(Array.from({ length: clients }, (_, at) => client(at, orders, load)));
    monitor.stop();
    expect(responses.filter(({ status }) => status !== 200)).toEqual([]);
    const { issued, maxAtOnce } = endpoint;
    const { log } = shop;
    expect(Math.max(...log.map(({ inFlight }) => inFlight.scope))).toBe(1);
    // Replicas that fetched for themselves would each send a token of their own.
    const accepted = Map.groupBy(
      log.filter(({ status }) => status === 200),
      (entry) => entry.key,
    );
    const senders = [...accepted.values()].map(
      (entries) => new Set(entries.map(({ nonce }) => replicaOf(nonce))),
    );
    expect(senders.filter(({ size }) => size > 1).length).toBeGreaterThan(senders.length / 2);
    expect(maxAtOnce).toBe(1);
    // The others hear of a new token at once: a call that was on its way meanwhile is refused, and sent again. A busy machine may
    // keep one from hearing of it before its call goes; if none of them heard, each would be refused once for every token.
    expect(Math.max(0, ...refusals(log))).toBeLessThanOrEqual(2);
    expect(refusals(log).filter((times) => times > 1).length).toBeLessThan(issued.length / 2);
    const pages = await Promise.all(
      ['metrics', 'activity', ''].flatMap((path) =>
        services.map(async ({ adminAddress: { port } }) =>
          (await fetch(`http://127.0.0.1:${port}/${path}`)).text(),
        ),
      ),
    );
    expect(pages.join('\n')).toMatch(/renewals_total\{upstream="shop",outcome="shared"\} [1-9]/);
    const shown = [...logs, ...pages, ...monitor.lines, await everythingHeld()].join('\n');
    for (const secret of ['canary', endpoint.url, ...issued]) expect(shown).not.toContain(secret);
  });

  test('find out by one call each that a token has ended before its time, where one call is in flight', async () => {
    const responses: CallResponses = [];
    let found = 0;
    let isOver = false;
    const load = { responses, goesOn: () => !isOver, pauseMs: 1 };
    const ended = async (): Promise<void> => {
      // Where none has been issued yet, nothing could be revoked, and each try would be over at once.
      await until(() => endpoint.issued.length > 0);
      // On a busy machine many a token is renewed before a call finds out that it has ended.
      for (let n = 0; n < 200 && found < 3; n += 1) {
        const token = endpoint.issued.at(-1) ?? '';
        const isSeen = (status: number): boolean =>
          shop.log.some((entry) => entry.key === token && entry.status === status);
        await until(() => isSeen(200) || endpoint.issued.at(-1) !== token);
        endpoint.revoke(token);
        // It may have been renewed just before.
        await until(() => isSeen(401) || endpoint.issued.at(-1) !== token);
        if (isSeen(401)) found += 1;
        await until(() => endpoint.issued.at(-1) !== token);
      }
      isOver = true;
    };
    await Promise.all([ended(), ...Array.from({ length: clients }, (_, at) => client(at, orders, load))]);
    expect(responses.filter(({ status }) => status !== 200)).toEqual([]);
    expect(Math.max(...refusals(shop.log))).toBeLessThanOrEqual(services.length);
    expect(found).toBe(3);
  });

  test('go on with orders and chats while the endpoint fails, is slow, breaks off and ends the token before: no call fails', async () => {
    const failed: Manner = { kind: 'answer', status: 500, body: 'oops' };
    const throttled: Manner = { kind: 'answer', status: 429, body: '', headers: { 'retry-after': '1' } };
    const slow: Manner = { kind: 'issue', afterMs: 900 };
    const good: Manner = { kind: 'issue' };
    const rough = [good, failed, good, slow, { kind: 'cut' } as const, failed, slow, throttled, good];
    const untilMs = systemClock.monotonic() + renewalMs;
    endpoint.respond(...Array.from({ length: Math.ceil(renewalMs / 9_000) }, () => rough).flat());
    const responses: CallResponses = [];
    const load = { responses, goesOn: () => systemClock.monotonic() < untilMs, pauseMs: 20 };
    await Promise.all(
      Array.from({ length: clients }, (_, at) => [client(at, orders, load), client(at, chats, load)]).flat(),
    );
    expect(responses.filter(({ status }) => status !== 200)).toEqual([]);
    const { issued, maxAtOnce, requests } = endpoint;
    expect(requests.length).toBeGreaterThan(issued.length);
    expect(issued.length).toBeGreaterThan(renewalMs / 4_000);
    expect(maxAtOnce).toBe(1);
    expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
    // A replica that has not heard yet of the token after finds out by a call. Chats are in flight side by side: those that had left are refused, too.
    expect(Math.max(0, ...refusals(shop.log))).toBeLessThanOrEqual(services.length);
    expect(Math.max(0, ...refusals(model.log))).toBeLessThanOrEqual(clients);
    expect([...shop.log, ...model.log].filter(({ status }) => status === 429)).toEqual([]);
    // What was known of the quotas went on: no replica has begun another bucket, which would have been probed.
    expect(services.map(({ gateway }) => gateway.parts.pressure.buckets().length)).toEqual([2, 2, 2]);
  });
});
