/** Which bucket stands for a quota, agreed on by several replicas over one Redis, and what Redis keeps of it. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { bucketKey, type BucketKey } from '../../src/ids.ts';
import { joinedBy, JoinedQuotas } from '../../src/quotas/joined-quotas.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

const [a, b, c] = [bucketKey('a'), bucketKey('b'), bucketKey('c')];

describe('buckets that are joined by several quotas', () => {
  const quotas = fc.dictionary(
    fc.constantFrom('1', '2', '3', '4'),
    fc.uniqueArray(fc.constantFrom(a, b, c, bucketKey('d'), bucketKey('e')), { minLength: 1 }),
  );
  const standsFor = (bucket: BucketKey, into: ReadonlyMap<BucketKey, BucketKey>): BucketKey => {
    const next = into.get(bucket);
    return next === undefined ? bucket : standsFor(next, into);
  };

  test('have one bucket in the end, the same in whatever order replicas hear of the quotas', () => {
    fc.assert(
      fc.property(quotas, (known) => {
        const lists = Object.entries(known);
        const into = joinedBy(new Map(lists));
        expect([...joinedBy(new Map(lists.toReversed()))]).toEqual([...into]);
        for (const [, buckets] of lists)
          expect(new Set(buckets.map((bucket) => standsFor(bucket, into))).size).toBe(1);
      }),
    );
  });

  test('are those of the quota, behind the first of which that was said', () => {
    expect([...joinedBy(new Map([['q', [b, a, c]]]))]).toEqual([
      [a, b],
      [c, b],
    ]);
  });
});

describe('over one Redis', () => {
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

  async function replica(): Promise<JoinedQuotas> {
    const started = await startReplica(`url: "${server.url}", commandTimeoutMs: 2000`);
    open.push(started);
    return new JoinedQuotas({
      clock: systemClock,
      random: systemRandom,
      labelKey: 'a label key for tests only',
      createMap: started.createMap,
      onJoined: () => {},
      onFailure: (failure) => {
        throw failure;
      },
    });
  }
  const parts = { upstream: 'u', credential: 'c', host: 'h', model: 'm', shop: 's', separate: [] };
  const shows = (quotas: JoinedQuotas, bucket: BucketKey, app = '7'): void =>
    quotas.noteOwner({ bucket, parts, named: null }, { meters: [], throttle: null, scope: { app } });
  const keys = (): Promise<string[]> => probe.keys('*{quota.*');

  test('the first bucket of a quota stands for it, and the other replicas learn of every joined bucket', async () => {
    const [one, other] = [await replica(), await replica()];
    shows(one, b);
    await until(async () => (await keys()).length === 1);
    shows(other, a);
    for (const each of [one, other]) await until(() => each.bucketOf(a) === b);
    const later = await replica();
    shows(later, c);
    for (const each of [one, other, later]) {
      await until(() => each.bucketOf(c) === b);
      expect([a, b].map((bucket) => each.bucketOf(bucket))).toEqual([b, b]);
    }
  });

  test('replicas that find the same quota at once agree on its bucket', async () => {
    const [one, other] = [await replica(), await replica()];
    shows(one, a);
    shows(other, b);
    await until(() => one.bucketOf(a) === one.bucketOf(b) && other.bucketOf(a) === other.bucketOf(b));
    expect(one.bucketOf(a)).toBe(other.bucketOf(a));
  });

  test('what Redis keeps of a quota expires', async () => {
    const one = await replica();
    shows(one, a);
    shows(one, b);
    await until(() => one.bucketOf(b) === one.bucketOf(a) && one.bucketOf(a) !== undefined);
    for (const key of await keys()) expect(await probe.pttl(key)).toBeGreaterThan(80_000_000);
    expect(await keys()).toHaveLength(1);
  });
});
