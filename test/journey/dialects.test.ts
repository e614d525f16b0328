/** Upstreams whose dialect the configuration describes: how fast they are asked, what counts as a refusal, for how long, and for whom. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { spokenWorld, type SpokenOptions, type SpokenWorld } from '../support/spoken.ts';
import { tooEarly } from '../support/too-early.ts';
import { until } from '../support/until.ts';
import { scripted, type Answer, type Arrival, type Scripted } from './scripted.ts';
import { bucketsOf, closeAll, many, opened } from './world.ts';

afterEach(closeAll);

const ok = (calls: number): number[] => many(calls, () => 200);

describe('an upstream that enforces a described dialect', () => {
  async function start(options: SpokenOptions): Promise<SpokenWorld> {
    const world = await spokenWorld(options);
    opened.push(() => world.close());
    return world;
  }

  test.each([
    [
      'several windows at once',
      [
        { requests: 3, seconds: 1 },
        { requests: 8, seconds: 3 },
      ],
      9,
    ],
    ['windows of the clock', [{ requests: 5, seconds: 1, kind: 'fixed' }] as const, 12],
  ])(
    'is paced by %s from the first call, without a word of its responses',
    async (_words, windows, calls) => {
      // The upstream refuses nothing: what is judged is when calls come.
      const world = await start({ speaks: {}, described: { windows } });
      const startedAt = Date.now();
      expect(await world.burst(calls)).toEqual(ok(calls));
      expect(tooEarly(world.simulator.log, startedAt, windows)).toEqual([]);
    },
  );

  test.each([
    ['a 403', { status: 403, field: 'x-acme-left', equals: '0' }],
    ['a 400', { status: 400, body: 'rate limit' }],
    ['a 200', { status: 200, body: 'slow down' }],
  ])('is believed when it throttles with %s', async (_words, condition) => {
    const speaks = { throttledBy: [condition] };
    const { call, throttles, simulator } = await start({ speaks, refusesBy: 0, retryAfter: true });
    let reply = await call();
    // On a busy machine a closing may be over before the call arrives: then there is another one.
    for (; throttles() === 0; reply = await call()) simulator.closeFor(2_000);
    expect([reply.status, reply.text, throttles()]).toEqual([200, '{"path":"/v1/things"}', 1]);
    expect(reply.headers.get('sluice-admission')).toContain('absorbed=1');
  });

  test('gets no call during its penalty, which no response states', async () => {
    const speaks = { windows: [{ requests: 50, seconds: 1 }], penaltySeconds: 1 };
    const { calls, throttles, simulator } = await start({ speaks });
    let replies = await calls(12);
    for (; throttles() === 0; replies = await calls(12)) simulator.closeFor(300);
    expect(replies.map(({ status }) => status)).toEqual(ok(12));
    // Those that were on their way with the first one were refused once, and nobody came back while it was closed.
    for (const { headers } of replies) expect(headers.get('sluice-admission')).toMatch(/absorbed=[01](,|$)/);
  });

  test('has a quota for each value of the part by which it separates quotas', async () => {
    const windows = [{ requests: 2, seconds: 60 }];
    const speaks = { windows, bucketBy: ['credential', 'path:/v1/{*}', 'header:x-org'] };
    const { call, throttles, simulator } = await start({ speaks });
    const calls = ['/v1/a/1', '/v1/a/2?x=1', '/v1/b/1', '/v1/b'].map((path) => call(path));
    const replies = await Promise.all([...calls, call('/v1/a/3', { 'x-org': 'o2' })]);
    expect(replies.map(({ status }) => status)).toEqual(ok(5));
    const third = await call('/v1/a', { prefer: 'wait=1' });
    expect([third.status, third.headers.get('sluice-error')]).toEqual([429, 'wait_too_long']);
    expect([throttles(), new Set(simulator.log.map(({ quota }) => quota)).size]).toEqual([0, 3]);
  });

  test('has no more calls in flight than it takes', async () => {
    const { burst, throttles } = await start({ speaks: { maxInFlight: 2 }, tookMs: 20 });
    expect([await burst(10), throttles()]).toEqual([ok(10), 0]);
  });
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
  const gapsOf = (arrivals: readonly Arrival[]): number[] =>
    arrivals.slice(1).map(({ at }, index) => at - (arrivals[index]?.at ?? NaN));

  test('has its call sent again after a growing time, while another workspace is served after the first second of it', async () => {
    const { get, arrived, arrivals, open } = await start('');
    const call = get('/api/a');
    await arrived(5);
    expect(await get('/api/b', 'b')).toBe('200 upstream');
    const own = () => arrivals.filter(({ path }) => path === '/a');
    // The sixteen seconds of the refused call are not over.
    expect(own()).toHaveLength(5);
    open();
    expect(await call).toBe('200 upstream');
    const gaps = gapsOf(own());
    expect(gaps).toHaveLength(5);
    for (const [n, gap] of gaps.entries()) expect(gap).toBeGreaterThanOrEqual(1000 * 2 ** n);
  });

  test('lasts as long as its dialect says', async () => {
    const { get, arrived, arrivals, open } = await start('speaks: { hintlessSeconds: 3 }');
    const call = get('/api/d');
    await arrived(3);
    open();
    expect(await call).toBe('200 upstream');
    for (const gap of gapsOf(arrivals)) expect(gap).toBeGreaterThanOrEqual(3000);
  });

  test('and comes to one call again and again, while others are served, leaves the bucket open from the third on', async () => {
    const model = await scripted(({ body }) => ({ status: body.includes('never') ? 429 : 200 }), {
      upstreams: {
        model:
          'kind: language-model, credential: "Bearer sk", limits: { requestsPerMinute: none, requestsPerDay: none }',
      },
      workspaces,
    });
    const post = (workspace: string, content: string) =>
      model.ask('/via/model/v1/chat/completions', {
        workspace,
        json: { model: 'm', messages: [{ role: 'user', content }] },
      });
    let isOver = false;
    const bad = post('a', 'never').finally(() => (isOver = true));
    const closedBehind = new Set<number>();
    for (let served = 0; !isOver; served += 1) {
      expect((await post('b', `other ${served}`)).status).toBe(200);
      const before = refusals(model);
      const isClosed = bucketsOf(model.gateway).some(({ closedMs }) => closedMs > 0);
      if (isClosed && refusals(model) === before) closedBehind.add(before);
    }
    expect((await bad).status).toBe(429);
    expect(refusals(model)).toBeGreaterThan(3);
    // It is closed behind the first refusal, and behind the second where no other call was served before that.
    expect([...closedBehind].filter((n) => n > 2)).toEqual([]);
  });
});

describe('a refusal concerns, as its dialect says,', () => {
  const speaks = `speaks: { bucketBy: [credential, 'path:/rooms/{*}'], throttledBy: [{ status: 429, field: x-all, scope: credential }, { status: 403, body: [LIMIT, at once], waitSeconds: 20, scope: call }], permanentBy: [{ status: 403, body: LIMIT, scope: bucket }, { status: 402, body: price of this call, scope: call }] }`;
  const start = async (answer: (path: string, at: number) => Answer) => {
    const api = await scripted(({ path, at }) => answer(path, at), {
      clock: fastClock(20),
      upstreams: { api: `credential: "Bearer one", ${speaks}`, other: `credential: "Bearer two", ${speaks}` },
      workspaces,
    });
    return { ...api, get: asking(api) };
  };

  test('all buckets of its credential, and none of another one', async () => {
    let closedUntil: number | null = null;
    const api = await start((path, at) => {
      closedUntil ??= at + 20_000;
      const isClosed = path.startsWith('/rooms/') && at < closedUntil;
      return isClosed ? { status: 429, headers: { 'x-all': 'true', 'retry-after': '20' } } : {};
    });
    const first = api.get('/api/rooms/1');
    await api.closed();
    const others = ['2', '3', '4'].map((room) => api.get(`/api/rooms/${room}`, 'b'));
    expect(await api.get('/other/elsewhere')).toBe('200 upstream');
    expect(await Promise.all([first, ...others])).toEqual(Array(4).fill('200 upstream'));
    expect(refusals(api)).toBe(1);
  });

  test('its call alone, though its code means more with another message', async () => {
    const busy = { status: 403, body: '{"errorCode":"LIMIT","message":"Too many at once"}' };
    let isFirst = true;
    const api = await start((path) => {
      const refuses = isFirst && path === '/rooms/5?busy';
      if (refuses) isFirst = false;
      return refuses ? busy : {};
    });
    const held = api.get('/api/rooms/5?busy');
    await until(() => refusals(api) === 1);
    expect(await api.get('/api/rooms/5', 'b')).toBe('200 upstream');
    expect(api.arrivals.map(({ path }) => path)).toEqual(['/rooms/5?busy', '/rooms/5']);
    expect(await held).toBe('200 upstream');
  });

  test('the bucket alone, or nobody else, also where it is for good', async () => {
    const { get } = await start((path) => {
      if (path.startsWith('/rooms/6')) return { status: 403, body: '{"errorCode":"LIMIT"}' };
      return path === '/dear' ? { status: 402, body: 'the price of this call is too high' } : {};
    });
    expect([await get('/api/dear'), await get('/api/plain', 'b')]).toEqual(['402 upstream', '200 upstream']);
    const rooms = [
      await get('/api/rooms/6'),
      await get('/api/rooms/6/more', 'b'),
      await get('/api/rooms/7', 'b'),
    ];
    expect(rooms).toEqual(['403 upstream', '403 upstream_refused', '200 upstream']);
  });
});
