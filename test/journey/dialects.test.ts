/** Upstreams whose dialect the configuration describes: how fast they are asked, what counts as a refusal, for how long, and for whom. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { spokenFleet } from '../support/spoken.ts';
import { scripted, type Scripted } from './scripted.ts';
import { bucketsOf, closeAll, opened } from './world.ts';

afterEach(closeAll);

test('an upstream has a quota for each value of the part by which it separates quotas', async () => {
  const windows = [{ requests: 2, seconds: 60 }];
  const speaks = { windows, bucketBy: ['credential', 'path:/v1/{*}', 'header:x-org'] };
  const { upstream, close } = await spokenFleet({ api: { speaks } });
  opened.push(close);
  const { call, throttles, simulator } = upstream('api');
  const calls = ['/v1/a/1', '/v1/a/2?x=1', '/v1/b/1', '/v1/b'].map((path) => call(path));
  const replies = await Promise.all([...calls, call('/v1/a/3', { 'x-org': 'o2' })]);
  expect(replies.map(({ status }) => status)).toEqual(Array(5).fill(200));
  const third = await call('/v1/a', { prefer: 'wait=1' });
  expect([third.status, third.headers.get('sluice-error')]).toEqual([429, 'wait_too_long']);
  expect([throttles(), new Set(simulator.log.map(({ quota }) => quota)).size]).toEqual([0, 3]);
});

/** Asks with a patience of 70 s, and tells who answered. */
const asking =
  ({ ask }: Scripted) =>
  async (path: string, workspace = 'a'): Promise<string> => {
    const { status, error } = await ask(`/via${path}`, { workspace, headers: { prefer: 'wait=70' } });
    return `${status} ${error ?? 'upstream'}`;
  };
const refusals = ({ arrivals }: Scripted): number => arrivals.filter(({ status }) => status >= 400).length;
const workspaces = { a: '', b: '' };

describe('a refusal that states no wait', () => {
  const start = async (settings: string) => {
    let isOpen = false;
    const api = await scripted(({ path }) => ({ status: isOpen || path === '/b' ? 200 : 429 }), {
      clock: fastClock(10),
      upstreams: { api: `credential: "Bearer one", ${settings}` },
      workspaces,
    });
    return { ...api, open: () => (isOpen = true), get: asking(api) };
  };

  test.each([
    ['a growing time', '', (n: number) => 1_000 * 2 ** n],
    ['the time that its dialect says', 'speaks: { hintlessSeconds: 3 }', () => 3_000],
  ])('has its call sent again after %s', async (_words, settings, gapOf) => {
    const { get, arrived, arrivals, open } = await start(settings);
    const call = get('/api/a');
    await arrived(5);
    if (settings === '') {
      // After the first second of a growing time another workspace is served; the sixteen of the refused call are not over.
      expect(await get('/api/b', 'b')).toBe('200 upstream');
      expect(arrivals).toHaveLength(6);
    }
    open();
    expect(await call).toBe('200 upstream');
    const own = arrivals.filter(({ path }) => path === '/a');
    const gaps = own.slice(1).map(({ at }, index) => at - (own[index]?.at ?? NaN));
    expect(gaps).toHaveLength(5);
    for (const [n, gap] of gaps.entries()) expect(gap).toBeGreaterThanOrEqual(gapOf(n));
  });

  test('and comes to one call again and again, while others are served, leaves the bucket open from the third on', async () => {
    const limits = 'limits: { requestsPerMinute: none, requestsPerDay: none }';
    const model = await scripted(({ body }) => ({ status: body.includes('never') ? 429 : 200 }), {
      upstreams: { model: `kind: language-model, credential: "Bearer sk", ${limits}` },
      workspaces,
    });
    const post = async (workspace: string, content: string): Promise<number> => {
      const json = { model: 'm', messages: [{ role: 'user', content }] };
      return (await model.ask('/via/model/v1/chat/completions', { workspace, json })).status;
    };
    let isOver = false;
    const bad = post('a', 'never').finally(() => (isOver = true));
    while (!isOver) {
      expect(await post('b', 'other')).toBe(200);
      const before = refusals(model);
      const isClosed = bucketsOf(model.gateway).some(({ closedMs }) => closedMs > 0);
      // It is closed behind the first refusal, and behind the second where no other call was served before that.
      if (isClosed && refusals(model) === before) expect(before).toBeLessThan(3);
    }
    expect([await bad, refusals(model) > 3]).toEqual([429, true]);
  });
});

test('a refusal concerns, as its dialect says, the bucket alone, or nobody else, also where it is for good', async () => {
  const speaks = `bucketBy: [credential, 'path:/rooms/{*}'], permanentBy: [{ status: 403, body: LIMIT, scope: bucket }, { status: 402, body: price of this call, scope: call }]`;
  const api = await scripted(
    ({ path }) => {
      if (path.startsWith('/rooms/6')) return { status: 403, body: '{"errorCode":"LIMIT"}' };
      return path === '/dear' ? { status: 402, body: 'the price of this call is too high' } : {};
    },
    { upstreams: { api: `credential: "Bearer one", speaks: { ${speaks} }` }, workspaces },
  );
  const get = asking(api);
  expect([await get('/api/dear'), await get('/api/plain', 'b')]).toEqual(['402 upstream', '200 upstream']);
  const rooms = [
    await get('/api/rooms/6'),
    await get('/api/rooms/6/more', 'b'),
    await get('/api/rooms/7', 'b'),
  ];
  expect(rooms).toEqual(['403 upstream', '403 upstream_refused', '200 upstream']);
});
