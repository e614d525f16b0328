/** Which bucket stands for a quota, agreed on by several replicas over one Redis, and what Redis keeps of it. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { setTimeout as sleep } from 'node:timers/promises';
import { bucketKey } from '../../../src/ids.ts';
import type { Joined } from '../../../src/limiter/quota-store.ts';
import { startReplica, type TestReplica } from '../../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';

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

async function replica(): Promise<TestReplica & { readonly heard: Joined[] }> {
  const started = await startReplica(`url: "${server.url}", commandTimeoutMs: 2000`);
  open.push(started);
  const heard: Joined[] = [];
  started.quotas.listen((joined) => heard.push(joined));
  return { ...started, heard };
}

const [a, b, c] = [bucketKey('a'), bucketKey('b'), bucketKey('c')];

test('the first bucket of a quota stands for it, and the other replicas learn of every joined bucket', async () => {
  const [one, other] = [await replica(), await replica()];
  expect(await one.quotas.claim('q', a)).toBe(a);
  expect(await other.quotas.claim('q', b)).toBe(a);
  expect(await one.quotas.claim('q', b)).toBe(a);
  for (let left = 200; one.heard.length === 0 && left > 0; left -= 1) await sleep(10);
  expect(one.heard).toEqual([{ bucket: b, into: a }]);
  expect(other.heard).toEqual([]);
});

test('buckets that are joined by several quotas have one bucket in the end, whatever the order', async () => {
  const one = await replica();
  expect(await one.quotas.claim('family', a)).toBe(a);
  expect(await one.quotas.claim('owner', b)).toBe(b);
  expect(await one.quotas.claim('owner', a)).toBe(b);
  expect(await one.quotas.claim('family', b)).toBe(b);
  expect(await one.quotas.claim('family', c)).toBe(b);
});

test('replicas that find the same quota at once agree on its bucket', async () => {
  const [one, other] = [await replica(), await replica()];
  const said = await Promise.all([one.quotas.claim('q', a), other.quotas.claim('q', b)]);
  expect(new Set(said).size).toBe(1);
});

test('what Redis keeps of a quota expires', async () => {
  const one = await replica();
  await one.quotas.claim('q', a);
  await one.quotas.claim('q', b);
  const keys = await probe.keys('*{presence}*');
  const own = keys.filter((key) => /joined|quota/.test(key));
  expect(own).toHaveLength(2);
  for (const key of own) expect(await probe.pttl(key)).toBeGreaterThan(80_000_000);
});
