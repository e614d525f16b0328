/** Breakers of several replicas over one Redis: which change wins, which replicas learn of it, and what Redis keeps. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { memoryMs } from '../../../src/breaker/breaker.policy.ts';
import type { BreakerId, BreakerNews, SharedBreaker } from '../../../src/limiter/breaker-store.ts';
import { startReplica, type TestReplica } from '../../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { until } from '../../support/until.ts';

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

interface Heard extends TestReplica {
  readonly news: BreakerNews[];
}

async function replica(): Promise<Heard> {
  const started = await startReplica(`url: "${server.url}"`);
  open.push(started);
  const news: BreakerNews[] = [];
  started.breakers.listen((change) => news.push(change));
  return { ...started, news };
}

const id: BreakerId = { key: 'k', upstream: 'u', credential: 'c' };
const state = (version: string, changes: Partial<SharedBreaker> = {}): SharedBreaker => ({
  version,
  kind: 'open',
  status: 402,
  said: null,
  refusals: 1,
  leftMs: 60_000,
  ...changes,
});

test('the first refusal opens a breaker for all replicas, and a second one at the same time does not change it', async () => {
  const [one, other] = [await replica(), await replica()];
  expect(await one.breakers.put(id, '', state('v1'))).toMatchObject({
    version: 'v1',
    kind: 'open',
    status: 402,
  });
  await until(() => other.news.length === 1);
  expect(other.news[0]).toMatchObject({ id, state: { version: 'v1', status: 402, refusals: 1 } });
  expect(other.news[0]?.state?.leftMs).toBeGreaterThan(55_000);
  // The other replica was refused at the same time; the reply shows it the breaker of the first one.
  expect(await other.breakers.put(id, '', state('v2', { status: 423 }))).toMatchObject({
    version: 'v1',
    status: 402,
  });
  expect(one.news).toEqual([]);
});

test('only one of two replicas that ask at once sends the probe', async () => {
  const [one, other] = [await replica(), await replica()];
  await one.breakers.put(id, '', state('v1'));
  const asked = await Promise.all([
    one.breakers.take(id, 'v1', state('p1', { kind: 'probing' })),
    other.breakers.take(id, 'v1', state('p2', { kind: 'probing' })),
  ]);
  const versions = asked.map((stored) => (typeof stored === 'string' ? stored : stored.version));
  expect(new Set(versions).size).toBe(1);
  expect(['p1', 'p2']).toContain(versions[0]);
});

test('a breaker that one replica closes is closed for all, also for one that asks for a probe', async () => {
  const [one, other] = [await replica(), await replica()];
  await one.breakers.put(id, '', state('v1'));
  await until(() => other.news.length === 1);
  expect(await one.breakers.close(id)).toBe('closed');
  await until(() => other.news.length === 2);
  expect(other.news[1]).toEqual({ id, state: null });
  expect(await other.breakers.take(id, 'v1', state('p', { kind: 'probing' }))).toBe('closed');
  expect(await other.breakers.read(id)).toBe('closed');
  expect(await probe.keys('*breaker*')).toEqual([]);
});

test('what the provider said is shared, in known words only', async () => {
  const one = await replica();
  const other = await replica();
  const said = [
    { type: 'insufficient_quota', code: 'billing_hard_limit_reached' },
    { type: 'billing_error', code: null },
    { type: null, code: 402 },
    { type: null, code: '402' },
    { type: 'RESOURCE_EXHAUSTED', code: 429 },
    { type: null, code: 'AllocationQuota.FreeTierOnly' },
    null,
  ] as const;
  for (const [n, each] of said.entries()) {
    const own = { ...id, key: `k${n}` };
    expect(await one.breakers.put(own, '', state('v1', { said: each }))).toMatchObject({ said: each });
    await until(() => other.news.length === n + 1);
    expect(other.news[n]?.state?.said).toEqual(each);
    expect(await other.breakers.read(own)).toMatchObject({ said: each });
  }
  const late = await replica();
  await late.breakers.catchUp();
  expect(late.news.map(({ state: seen }) => seen?.said)).toEqual(expect.arrayContaining([...said]));
  // What somebody else may have written to Redis says nothing to a client.
  const [key] = (await probe.keys('*breaker:k0')) as [string];
  const text = (await probe.get(key)) ?? '';
  await probe.set(
    key,
    text.replace('insufficient_quota,billing_hard_limit_reached', 'see,http://evil.example'),
  );
  expect(await one.breakers.read({ ...id, key: 'k0' })).toMatchObject({ status: 402, said: null });
});

test('the keys of a breaker expire by themselves', async () => {
  const one = await replica();
  await one.breakers.put(id, '', state('v1'));
  const keys = await probe.keys('*breaker*');
  // The breaker, and the names of all of them.
  expect(keys).toHaveLength(2);
  for (const key of keys) {
    const leftMs = await probe.pttl(key);
    expect(leftMs).toBeGreaterThan(memoryMs);
    expect(leftMs).toBeLessThanOrEqual(memoryMs + 60_000);
  }
});

test('a replica that starts later learns of the breakers that are not closed', async () => {
  const one = await replica();
  const other = { ...id, key: 'k2' };
  await one.breakers.put(id, '', state('v1'));
  await one.breakers.put(other, '', state('v2'));
  await one.breakers.close(other);
  const later = await replica();
  await later.breakers.catchUp();
  expect(later.news).toMatchObject([{ id, state: { version: 'v1', status: 402 } }]);
});

test('names of breakers that something else wrote to Redis are ignored', async () => {
  const one = await replica();
  await probe.zadd('sluice:{presence}:2:breakers', 1, 'a b');
  await one.breakers.catchUp();
  expect(one.news).toEqual([]);
});

test('a breaker that Redis has lost is stored again by the next refusal of its probe', async () => {
  const one = await replica();
  await one.breakers.put(id, '', state('v1'));
  await probe.flushall();
  expect(await one.breakers.put(id, 'v1', state('v2', { refusals: 2 }))).toMatchObject({
    version: 'v2',
    refusals: 2,
  });
});

test('a breaker is reported as unavailable while Redis cannot be reached', async () => {
  const own = await startRedis();
  const one = await startReplica(`url: "${own.url}"`);
  process.kill(own.pid, 'SIGSTOP');
  expect(await one.breakers.put(id, '', state('v1'))).toBe('unavailable');
  expect(await one.breakers.read(id)).toBe('unavailable');
  process.kill(own.pid, 'SIGCONT');
  await one.close();
  await own.stop();
});
