/** Tokens over several replicas and a real Redis: one is fetched for all, and Redis alone reveals none. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { OAuthClient } from '../../src/config/settings.ts';
import type { Fetched } from '../../src/credentials/oauth-source.ts';
import { RedisTokens } from '../../src/credentials/redis-tokens.ts';
import { SharedTokens, sharedName } from '../../src/credentials/shared-tokens.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { pause } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { upstreamSettings } from '../support/upstream-settings.ts';

const labelKey = 'a label key for tests only';
let redis: RedisServer;
let probe: Redis;

beforeAll(async () => {
  redis = await startRedis();
  probe = new Redis(redis.port);
});
beforeEach(() => probe.flushall());
afterAll(async () => {
  probe.disconnect();
  await redis.stop();
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
    refreshTokenFile: null,
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
      onRefused: () => {},
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
    const tokens = new SharedTokens({ clock: systemClock, labelKey: key, store, ownFetcher: endpoint });
    const options = { client, upstream: upstreamSettings('api', []), signal: new AbortController().signal };
    return {
      asked,
      store,
      fetch: (unwanted: string | null = null) => tokens.fetch({ ...options, unwanted }),
    };
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
      ownFetcher: { fetch: () => Promise.resolve({ kind: 'failed', fault: 'timeout', statedMs: null }) },
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
