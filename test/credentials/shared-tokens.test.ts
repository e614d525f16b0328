/** Tokens over several replicas and a real Redis: one is fetched for all, and Redis alone reveals none. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { OAuthClient } from '../../src/config/settings.ts';
import type { Fetched } from '../../src/credentials/oauth-source.ts';
import { RedisTokens } from '../../src/credentials/redis-tokens.ts';
import { SharedTokens, sharedName } from '../../src/credentials/shared-tokens.ts';
import type { Service } from '../../src/service.ts';
import { createCommerceSimulator, type CommerceSimulator } from '../../src/simulators/commerce.ts';
import { serviceOf } from '../support/gateway.ts';
import { clientAgent, pause, send } from '../support/redis-fleet.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { startTokenEndpoint, type Manner, type TokenEndpoint } from '../support/token-endpoint.ts';
import { upstreamSettings } from '../support/upstream-settings.ts';
import { plainRedis } from '../support/plain-redis.ts';

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
  let endpoint: TokenEndpoint;
  const logs: string[] = [];
  const { key, hash } = createKey();
  const storesOf = (tokens: readonly string[]) => ({
    '127.0.0.1': { plan: { limit: 4_000, leak: 200 }, apps: { 'app-sim': [...tokens] } },
  });

  beforeEach(async () => {
    shop = createCommerceSimulator({ latency: { minMs: 1, maxMs: 3 }, stores: storesOf([]) });
    const { url } = await shop.listen();
    endpoint = await startTokenEndpoint({
      lifeSeconds: 2,
      isRotating: true,
      client: { id: 'canary-client', secret: 'canary-secret' },
      onChange: (valid) => shop.configure({ stores: storesOf(valid) }),
    });
    const yaml = [
      'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }',
      `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }`,
      `privacy: { labelKey: "${labelKey}" }`,
      'upstreams:',
      '  shop:',
      '    kind: commerce',
      `    origins: ["${url}"]`,
      '    allowPrivateAddresses: true',
      `    credential: { oauth: { tokenUrl: "${endpoint.url}", clientId: canary-client, clientSecret: canary-secret } }`,
      '    limits: { requestsPerMinute: 100000, bucket: { capacity: 4000, leakPerSecond: 200 } }',
      `workspaces:\n  acme: { keys: ["${hash}"] }`,
    ].join('\n');
    services = await Promise.all([1, 2, 3].map(() => serviceOf(yaml, logs)));
  });
  afterEach(async () => {
    await Promise.all(services.map((service) => service.close()));
    await endpoint.close();
    await shop.close();
  });

  test('use one token, which revokes the one before: no call fails, and one call is in flight across every renewal', async () => {
    const monitor = await monitorRedis(redis.port);
    const answers: Awaited<ReturnType<typeof send>>[] = [];
    const path = '/via/shop/admin/api/2026-10/orders.json?limit=1';
    const headers = { prefer: 'wait=60' };
    // Clients that each send the next call when the last one is answered: as much load as the machine carries.
    const client = async (at: number): Promise<void> => {
      for (let n = 0; endpoint.issued.length < 6; n += 1) {
        const url = `http://127.0.0.1:${services[(at + n) % 3]?.dataAddress.port ?? 0}`;
        answers.push(await send({ url, path, key, nonce: `${at}-${n}`, agent, headers }));
        await pause(10);
      }
    };
    await Promise.all(Array.from({ length: 6 }, (_, at) => client(at)));
    monitor.stop();
    expect(answers.filter(({ status }) => status !== 200)).toEqual([]);
    const { issued, maxAtOnce } = endpoint;
    const { log } = shop;
    expect(Math.max(...log.map(({ inFlight }) => inFlight.scope))).toBe(1);
    const seconds = ((log.at(-1)?.t ?? 0) - (log[0]?.t ?? 0)) / 1000;
    // A token each 1.4 s or so; replicas that fetched for themselves would revoke each other's with every call.
    expect(seconds).toBeGreaterThan(4);
    expect(maxAtOnce).toBe(1);
    // The others hear of a new token at once: a call that was on its way meanwhile is refused, and sent again.
    expect(log.filter(({ status }) => status === 401).length).toBeLessThanOrEqual(2 * issued.length);
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

  test(
    'go on while the endpoint fails, is slow, breaks off and ends the token before: no call fails',
    async () => {
      const failed: Manner = { kind: 'answer', status: 500, body: 'oops' };
      const throttled: Manner = { kind: 'answer', status: 429, body: '', headers: { 'retry-after': '1' } };
      const slow: Manner = { kind: 'issue', afterMs: 900 };
      const good: Manner = { kind: 'issue' };
      const rough = [good, failed, good, slow, { kind: 'cut' } as const, failed, slow, throttled, good];
      const untilMs = systemClock.monotonic() + renewalMs;
      endpoint.answer(...Array.from({ length: Math.ceil(renewalMs / 9_000) }, () => rough).flat());
      const answers: Awaited<ReturnType<typeof send>>[] = [];
      const client = async (at: number): Promise<void> => {
        for (let n = 0; systemClock.monotonic() < untilMs; n += 1) {
          const url = `http://127.0.0.1:${services[(at + n) % 3]?.dataAddress.port ?? 0}`;
          const headers = { prefer: 'wait=60' };
          const path = '/via/shop/admin/api/2026-10/orders.json?limit=1';
          answers.push(await send({ url, path, key, nonce: `${at}-${n}`, agent, headers }));
          await pause(20);
        }
      };
      await Promise.all(Array.from({ length: 6 }, (_, at) => client(at)));
      expect(answers.filter(({ status }) => status !== 200)).toEqual([]);
      const { issued, maxAtOnce, requests } = endpoint;
      expect(requests.length).toBeGreaterThan(issued.length);
      expect(issued.length).toBeGreaterThan(renewalMs / 4_000);
      expect(maxAtOnce).toBe(1);
      expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
      // Only those that find out: one of each replica for a token that ended before its time.
      expect(shop.log.filter(({ status }) => status === 401).length).toBeLessThanOrEqual(3 * issued.length);
      expect(shop.log.filter(({ status }) => status === 429)).toEqual([]);
    },
    renewalMs * 2 + 30_000,
  );
});

describe('a shared token', () => {
  const client: OAuthClient = {
    tokenUrl: 'https://id.example/token',
    clientId: 'canary-id',
    clientSecret: 'canary-secret',
    scope: null,
    format: 'form',
    clientAuth: 'body',
    shared: true,
  };
  const stores: RedisTokens[] = [];
  afterEach(() => {
    for (const store of stores.splice(0)) store.close();
  });
  const storeOn = (port: number, onStored: (name: string) => void = () => {}): RedisTokens => {
    const store = new RedisTokens({
      settings: plainRedis({ nodes: [{ host: '127.0.0.1', port }], commandTimeoutMs: 1_000 }),
      clock: systemClock,
      random: systemRandom,
      onError: () => {},
      onStored,
    });
    stores.push(store);
    return store;
  };
  /** A replica with this label key, whose endpoint issues numbered tokens. */
  const replica = (key = labelKey, store = storeOn(redis.port)) => {
    const asked: (string | null)[] = [];
    const endpoint = {
      fetch: ({ unwanted }: { readonly unwanted: string | null }): Promise<Fetched> => {
        asked.push(unwanted);
        const token = `canary-token-${Math.random().toString(36).slice(2)}`;
        return Promise.resolve({
          kind: 'token',
          token,
          lifeMs: 60_000,
          issuedAt: systemClock.monotonic(),
          isShared: false,
        });
      },
    };
    const tokens = new SharedTokens({ clock: systemClock, labelKey: key, store, endpoint });
    const wish = { client, upstream: upstreamSettings('api', []), signal: new AbortController().signal };
    return { asked, store, fetch: (unwanted: string | null = null) => tokens.fetch({ ...wish, unwanted }) };
  };
  const tokenOf = (fetched: Fetched): string => (fetched.kind === 'token' ? fetched.token : fetched.fault);

  test('is fetched by one of many replicas that need it at once', async () => {
    const many = Array.from({ length: 6 }, () => replica());
    const fetched = await Promise.all(many.map((each) => each.fetch()));
    expect(new Set(fetched.map(tokenOf)).size).toBe(1);
    expect(many.flatMap(({ asked }) => asked)).toHaveLength(1);
    const lives = fetched.map((each) => (each.kind === 'token' ? [each.lifeMs, each.isShared] : []));
    expect(lives.filter(([lifeMs, isShared]) => lifeMs === 60_000 && isShared)).toHaveLength(5);
  });

  test('is replaced once for all replicas when it is no longer wanted', async () => {
    const [one, two] = [replica(), replica()];
    const first = tokenOf(await one.fetch());
    const second = tokenOf(await two.fetch(first));
    expect(second).not.toBe(first);
    expect(tokenOf(await one.fetch(first))).toBe(second);
    expect([one.asked, two.asked]).toEqual([[null], [first]]);
  });

  test('is announced to the other replicas', async () => {
    const heard: string[] = [];
    const listener = storeOn(redis.port, (name) => void heard.push(name));
    await listener.read('any');
    while ((await probe.pubsub('NUMSUB', 'sluice:1:tokens'))[1] !== 1) await pause(10);
    await replica().fetch();
    while (heard.length === 0) await pause(10);
    expect(heard).toEqual([sharedName(labelKey, client)]);
  });

  test('is fetched by another replica when the one that began to fetch it has died', async () => {
    const dead = storeOn(redis.port);
    expect(await dead.begin(sharedName(labelKey, client), 400)).toBe(true);
    const other = replica();
    expect(tokenOf(await other.fetch())).toContain('canary-token');
    expect(other.asked).toHaveLength(1);
  });

  test('is not read by a replica with another label key, nor under another name', async () => {
    const { fetch } = replica();
    await fetch();
    const stranger = replica('another label key, of a stranger');
    await stranger.fetch();
    expect(stranger.asked).toHaveLength(1);
    const name = sharedName(labelKey, client);
    const sealed = (await probe.get(`sluice:{token:${name}}:1:sealed`)) ?? '';
    expect(Buffer.from(sealed, 'base64').toString('latin1')).not.toContain('canary');
    const moved = sharedName(labelKey, { ...client, clientId: 'another' });
    await probe.set(`sluice:{token:${moved}}:1:sealed`, sealed, 'PX', 60_000);
    const store = storeOn(redis.port);
    const tokens = new SharedTokens({
      clock: systemClock,
      labelKey,
      store,
      endpoint: { fetch: () => Promise.resolve({ kind: 'failed', fault: 'timeout', statedMs: null }) },
    });
    expect(
      await tokens.readShared({ client: { ...client, clientId: 'another' }, unwanted: null }),
    ).toBeNull();
  });

  test('is fetched by each replica itself while Redis is unavailable', async () => {
    const disconnected = replica(labelKey, storeOn(1));
    expect(tokenOf(await disconnected.fetch())).toContain('canary-token');
    expect(disconnected.asked).toHaveLength(1);
  });
});
