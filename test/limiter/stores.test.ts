import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { ceilingKey } from '../../src/ids.ts';
import type { Grant } from '../../src/limiter/limiter.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { admission } from '../support/admission.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';
import { until } from '../support/until.ts';
import { storeContract } from './contract.ts';

let server: RedisServer;

storeContract('embedded', { begin: async () => null, end: async () => {}, clear: async () => {} });
storeContract('Redis', {
  async begin() {
    server = await startRedis();
    return `url: "${server.url}", commandTimeoutMs: 2000`;
  },
  end: () => server.stop(),
  clear: async () => {},
});

const serial = { maxInFlight: 1 } as const;

describe('two replicas on one Redis', () => {
  let redis: RedisServer;
  let probe: Redis;
  let a: TestReplica;
  let b: TestReplica;

  beforeAll(async () => {
    redis = await startRedis();
    const section = `url: "${redis.url}", commandTimeoutMs: 2000`;
    [a, b] = await Promise.all([startReplica(section), startReplica(section)]);
    probe = new Redis(redis.port);
  });
  afterAll(async () => {
    probe.disconnect();
    await Promise.all([a.close(), b.close()]);
    await redis.stop();
  });

  const succeed = (replica: TestReplica, grant: Grant) =>
    replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);

  test('share a capped lane: a call of one replica is granted by message when the lease of the other ends', async () => {
    const more = { bucket: 'shared', ...serial };
    const first = await a.limiter.admit(admission('a1', more));
    expect((await b.limiter.admit(admission('b1', more))).kind).toBe('queued');
    if (first.kind !== 'granted') throw new Error('not granted');
    await succeed(a, first.grant);
    await succeed(b, await b.granted('b1'));
  });

  test('share a ceiling, whichever of them asks', async () => {
    const ceiling = { key: ceilingKey('shared'), perMinute: 4, perDay: 100 };
    const replies = [];
    for (const one of [a, b, a, b, a, b]) replies.push((await one.ceilings.take(ceiling)).kind);
    expect(replies).toEqual(['taken', 'taken', 'taken', 'taken', 'refused', 'refused']);
    expect(await probe.zcard('sluice:sends:{shared}')).toBe(4);
    expect(await probe.get('sluice:day:{shared}')).toBe('4');
  });

  test('write nothing when a ceiling refuses', async () => {
    const ceiling = { key: ceilingKey('full'), perMinute: 1, perDay: 100 };
    await a.ceilings.take(ceiling);
    const before = [
      await probe.zrange('sluice:sends:{full}', '0', '-1'),
      await probe.get('sluice:day:{full}'),
    ];
    expect((await b.ceilings.take(ceiling)).kind).toBe('refused');
    const after = [
      await probe.zrange('sluice:sends:{full}', '0', '-1'),
      await probe.get('sluice:day:{full}'),
    ];
    expect(after).toEqual(before);
  });

  test('need no more than a tick for a grant whose message was lost', async () => {
    const more = { bucket: 'no-message', ...serial };
    const first = await a.limiter.admit(admission('a2', more));
    await b.limiter.admit(admission('b2', more));
    if (first.kind !== 'granted') throw new Error('not granted');
    const subscribers = String(await probe.call('CLIENT', 'LIST', 'TYPE', 'pubsub'));
    for (const [, id = ''] of subscribers.matchAll(/^id=(\d+)/gm))
      await probe.call('CLIENT', 'KILL', 'ID', id);
    await succeed(a, first.grant);
    await succeed(b, await b.granted('b2'));
  });

  test('leave no key without an expiry', async () => {
    for (const key of await probe.keys('*')) expect([key, (await probe.pttl(key)) > 0]).toEqual([key, true]);
  });
});

describe('after a loss of all data', () => {
  let redis: RedisServer;
  let probe: Redis;
  let a: TestReplica;
  let b: TestReplica;

  beforeEach(async () => {
    redis = await startRedis();
    const section = `url: "${redis.url}", commandTimeoutMs: 2000`;
    [a, b] = await Promise.all([startReplica(section), startReplica(section)]);
    probe = new Redis(redis.port);
  });
  afterEach(async () => {
    probe.disconnect();
    await Promise.all([a.close(), b.close()]);
    await redis.stop();
  });

  test('sends of the last minute are put back', async () => {
    const ceiling = { key: ceilingKey('kept'), perMinute: 3, perDay: null };
    for (const one of [a, b, a]) await one.ceilings.take(ceiling);
    await probe.flushall();
    await until(async () => (await probe.zcard('sluice:sends:{kept}')) === 3);
    expect((await b.ceilings.take(ceiling)).kind).toBe('refused');
  });
});

describe('the first connection to Redis', () => {
  test('is refused when Redis evicts keys, with advice on what to set', async () => {
    const redis = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
    await expect(startReplica(`url: "${redis.url}"`)).rejects.toThrow(/maxmemory-policy to noeviction/);
    await redis.stop();
  });

  test('may come late: the replica begins in the mode chosen for an unavailable Redis and goes over to Redis', async () => {
    const redis = await startRedis();
    await redis.stop();
    const replica = await startReplica(`url: "${redis.url}", whenDown: deny`);
    expect(replica.noted.filter((word) => word.startsWith('mode'))).toEqual(['mode deny']);
    expect(await replica.limiter.admit(admission('early'))).toMatchObject({ reason: 'limiter_unavailable' });
    const again = await startRedis({ port: redis.port });
    await until(() => replica.noted.includes('mode redis'));
    // A log is joined after Redis has come back.
    await until(async () => (await replica.limiter.admit(admission('late'))).kind !== 'refused', 20);
    if ((await replica.limiter.admit(admission('late'))).kind !== 'granted') await replica.granted('late');
    await replica.close();
    await again.stop();
  });
});
