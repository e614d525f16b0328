/** Described dialects over three replicas on one Redis. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { spokenWorld } from '../support/spoken.ts';
import { tooEarly } from '../support/too-early.ts';
import { until } from '../support/until.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(async () => {
  await redis.stop();
});

test('three replicas keep two windows together, without a word of the responses', async () => {
  const windows = [
    { requests: 4, seconds: 1 },
    { requests: 9, seconds: 3 },
  ];
  // The upstream refuses nothing: what is judged is when calls come.
  const world = await spokenWorld({ speaks: {}, described: { windows }, replicas: 3, redis: redis.url });
  const startedAt = Date.now();
  expect(await world.burst(12)).toEqual(Array.from({ length: 12 }, () => 200));
  expect(tooEarly(world.simulator.log, startedAt, windows)).toEqual([]);
  await world.close();
});

test('three replicas send no more calls than a window has room for, whichever of two has less', async () => {
  const narrow = [
    { requests: 4, seconds: 300 },
    { requests: 9, seconds: 600 },
  ];
  const wide = [
    { requests: 9, seconds: 300 },
    { requests: 4, seconds: 600 },
  ];
  for (const [database, windows] of [narrow, wide].entries()) {
    const url = `${redis.url}/${database + 1}`;
    const world = await spokenWorld({ speaks: {}, described: { windows }, replicas: 3, redis: url });
    const replies = await Promise.all(
      Array.from({ length: 12 }, () => world.call('/v1/things', { prefer: 'wait=10' })),
    );
    const sent = replies.filter(({ status }) => status === 200);
    const refused = replies.filter(({ status }) => status === 429);
    expect([sent.length, refused.length]).toEqual([4, 8]);
    expect(world.simulator.log).toHaveLength(4);
    await world.close();
  }
});

test('a refusal that concerns the credential stops every bucket of it at every replica', async () => {
  const speaks = {
    bucketBy: ['credential', 'path:/v1/{*}'],
    throttledBy: [{ status: 429, field: 'x-all', scope: 'credential' as const }],
  };
  const upstream = { speaks, refusesBy: 0, retryAfter: true };
  const world = await spokenWorld({ ...upstream, replicas: 3, redis: `${redis.url}/4` });
  world.simulator.closeFor(3_000);
  const first = world.call('/v1/a');
  const isClosed = () =>
    world.services[0]?.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot.closedMs > 0);
  await until(() => isClosed() === true);
  const others = ['/v1/b', '/v1/c', '/v1/d', '/v1/a'].map((path) => world.call(path));
  const statuses = (await Promise.all([first, ...others])).map(({ status }) => status);
  expect(statuses).toEqual([200, 200, 200, 200, 200]);
  expect(world.throttles()).toBe(1);
  await world.close();
});

test('three replicas find which calls share the quota that responses name', async () => {
  const isSearch = (path: string): boolean => path.startsWith('/v1/search');
  const speaks = { windows: [{ requests: 6, seconds: 5 }], bucketBy: ['credential', 'answer:x-quota'] };
  const world = await spokenWorld({
    speaks,
    described: { bucketBy: speaks.bucketBy },
    nameOf: (path) => (isSearch(path) ? 'search' : 'core'),
    retryAfter: true,
    replicas: 3,
    redis: `${redis.url}/5`,
  });
  const ask = async (...paths: string[]): Promise<number[]> => {
    const statuses: number[] = [];
    for (const path of paths) statuses.push((await world.call(path)).status);
    return statuses;
  };
  // Each replica sees both forms.
  expect(await ask(...Array(3).fill('/v1/search/code'), ...Array(3).fill('/v1/search/issues'))).toEqual(
    Array(6).fill(200),
  );
  const searches = ['/v1/search/code', '/v1/search/issues', '/v1/search/issues'].map((path) =>
    world.call(path),
  );
  expect(await ask('/v1/repos', '/v1/repos', '/v1/repos')).toEqual([200, 200, 200]);
  expect((await Promise.all(searches)).map(({ status }) => status)).toEqual([200, 200, 200]);
  const more = await Promise.all(['/v1/search/code', '/v1/search/issues'].map((path) => world.call(path)));
  expect(more.map(({ status }) => status)).toEqual([200, 200]);
  // The quota of repos refuses nothing.
  const refused = world.simulator.log.filter(({ kind }) => kind === 'throttled');
  expect(refused.filter(({ path }) => !isSearch(path))).toEqual([]);
  const later = world.simulator.log.filter(({ kind }) => kind === 'admitted').slice(6, 9);
  // On a slow machine the window of the searches may be over before they come.
  expect(refused.length === 0 || later.every(({ path }) => path === '/v1/repos')).toBe(true);
  await world.close();
});
