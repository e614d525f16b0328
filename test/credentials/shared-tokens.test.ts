/** Tokens over several replicas and a real Redis: one is fetched for all, and Redis alone reveals none. */
import { describe, expect, test } from '@jest/globals';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { fetchForAll, sharedName, type SharedToken } from '../../src/credentials/shared-tokens.ts';
import type { Fetched } from '../../src/credentials/token-endpoint.ts';
import { RedisMap } from '../../src/replicated/redis-map.ts';
import { onRedis } from '../support/shared-redis.ts';
import { oauthClient } from '../support/token-endpoint.ts';
import { upstreamSettings } from '../support/upstream-settings.ts';

const labelKey = 'a label key for tests only';
const redis = onRedis();

describe('a shared token', () => {
  const client = { ...oauthClient, clientId: 'canary-id', clientSecret: 'canary-secret' };
  const mapOn = (port: number, key = labelKey): RedisMap<SharedToken> =>
    new RedisMap({ redis: redis.connect({ port }), name: 'token.3', labelKey: key });
  /** A replica with this label key, whose endpoint issues numbered tokens. */
  const replica = (key = labelKey, map = mapOn(redis.port, key)) => {
    const asked: (string | null)[] = [];
    const fetch = ({ unwanted }: { readonly unwanted: string | null }): Promise<Fetched> => {
      asked.push(unwanted);
      const token = `canary-token-${Math.random().toString(36).slice(2)}`;
      const issuedAt = systemClock.monotonic();
      return Promise.resolve({ kind: 'token', token, lifeMs: 60_000, issuedAt, isShared: false });
    };
    const forAll = fetchForAll({ clock: systemClock, random: systemRandom, labelKey: key, map, fetch });
    const options = { client, upstream: upstreamSettings('api', []), signal: new AbortController().signal };
    return {
      asked,
      fetch: (unwanted: string | null = null) => forAll({ ...options, unwanted }),
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

  test('is fetched by another replica when the one that began to fetch it has died', async () => {
    const turn = { owner: 'dead', ttlMs: 400, over: null };
    const name = `${sharedName(labelKey, client)}.fetch`;
    expect(await mapOn(redis.port).put({ name }, { kind: 'fetching' }, turn)).toEqual({ kind: 'put' });
    const other = replica();
    expect(tokenOf(await other.fetch())).toContain('canary-token');
    expect(other.asked).toHaveLength(1);
  });

  test('is not read by a replica with another label key, and stands nowhere in Redis', async () => {
    await replica().fetch();
    const stranger = replica('another label key, of a stranger');
    await stranger.fetch();
    expect(stranger.asked).toHaveLength(1);
    const keys = await redis.probe.keys('*');
    expect(keys.length).toBeGreaterThan(0);
    for (const key of keys)
      expect(`${key} ${(await redis.probe.getBuffer(key))?.toString('latin1') ?? ''}`).not.toContain(
        'canary',
      );
  });

  test('is fetched by each replica itself while Redis is unavailable', async () => {
    const disconnected = replica(labelKey, mapOn(1));
    expect(tokenOf(await disconnected.fetch())).toContain('canary-token');
    expect(disconnected.asked).toHaveLength(1);
  });
});
