/** Every preset against a simulator that enforces it, and windows of single operations. */
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from '@jest/globals';
import { parse } from 'yaml';
import type { SpokenCondition } from '../../simulators/dialect/parts.ts';
import { presetNames, presetPath, type SpeaksInput } from '../../src/config/speaks.ts';
import { fastClock } from '../support/fast-clock.ts';
import { stoppedClock } from '../support/skipping-clock.ts';
import { type SpokenFleet, spokenFleet, type SpokenUpstream } from '../support/spoken.ts';
import { type Scripted, scripted } from './scripted.ts';
import { bucketsOf, closeAll, many, opened } from './world.ts';

afterEach(closeAll);

// Small windows and penalties in place of the preset's: what is tried is its words, not its patience.
const windows = [{ requests: 5, seconds: 1 }];
const burstCalls = 7;
const partsOf = (preset: string): SpeaksInput =>
  (parse(readFileSync(presetPath(preset), 'utf8')) as { readonly speaks: SpeaksInput }).speaks;
/** Where a preset has no refusal for good, an operator describes one beside it. */
const permanentOf = (preset: string): readonly SpokenCondition[] =>
  partsOf(preset).permanentBy ?? [{ status: 403, body: 'your plan has ended' }];

function upstreamOf(preset: string): SpokenUpstream {
  const parts = partsOf(preset);
  const penalty = parts.penaltySeconds === undefined ? {} : { penaltySeconds: 1 };
  const changes = { windows, permanentBy: permanentOf(preset), ...penalty };
  return {
    speaks: { ...parts, ...changes },
    described: { preset, ...changes },
    ...(parts.throttledBy === undefined ? {} : { refusesBy: 0 }),
    retryAfter: true,
  };
}

async function tried(fleet: SpokenFleet, preset: string) {
  const { simulator, call, burst, throttles } = fleet.upstream(preset);
  await call();
  let statuses: readonly number[] = [];
  // On a busy machine a closing may be over before a call arrives: then there is another one.
  for (let closedMs = 600; throttles() === 0; closedMs *= 2) {
    simulator.closeFor(closedMs);
    statuses = await burst(burstCalls);
  }
  const before = simulator.log.length;
  const first = await call('/v1/things', { 'x-sim': 'permanent' });
  const afterFirst = simulator.log.length;
  const buckets = bucketsOf(fleet, preset);
  const next = await call('/v1/things', { 'x-sim': 'permanent' });
  return {
    burst: statuses,
    refused: [first.status, first.headers.get('x-should-retry'), afterFirst - before],
    closed: buckets.filter(({ closedMs }) => closedMs > 0).length,
    next: [next.headers.get('sluice-error'), simulator.log.length - afterFirst],
  };
}

test('in every preset calls pass a burst and a closing, and a refusal for good is asked once', async () => {
  const fleet = await spokenFleet(Object.fromEntries(presetNames.map((name) => [name, upstreamOf(name)])));
  opened.push(() => fleet.close());
  const seen = await Promise.all(presetNames.map(async (name) => [name, await tried(fleet, name)] as const));
  const expected = presetNames.map((name) => {
    const status = permanentOf(name).flatMap((condition) => [condition.status].flat())[0] ?? 0;
    const burst = many(burstCalls, () => 200);
    return [name, { burst, refused: [status, 'false', 1], closed: 0, next: ['upstream_refused', 0] }];
  });
  expect(seen).toEqual(expected);
});

test('calls that wait for the window of their operation go on under the one that a reload gives it', async () => {
  const searches = "{ requests: 2, seconds: 600, calls: 'GET /search/{}' }";
  const speaks = `{ windows: [{ requests: 9, seconds: 600 }, ${searches}] }`;
  const { ask, reload, waiting } = await scripted(undefined, {
    clock: stoppedClock(),
    upstreams: { api: `credential: "Bearer one", speaks: ${speaks}` },
  });
  const get = async (path: string): Promise<string> => {
    const { status, error } = await ask(`/via/api${path}`, { headers: { prefer: 'wait=70' } });
    return `${status} ${error ?? 'upstream'}`;
  };
  for (const path of ['/search/a', '/search/b', '/other']) expect(await get(path)).toBe('200 upstream');
  expect([await get('/search/c'), await get('/other')]).toEqual(['429 wait_too_long', '200 upstream']);
  await reload(searches, searches.replace('600', '30'));
  const held = get('/search/c');
  await waiting(1);
  await reload('requests: 2, seconds: 30', 'requests: 3, seconds: 30');
  expect(await held).toBe('200 upstream');
});

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
