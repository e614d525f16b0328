import { afterEach, describe, expect, test } from '@jest/globals';
import type { LogEntry } from '../../simulators/log.ts';
import { fastClock } from '../support/fast-clock.ts';
import { insideRetryAfter, startWorld, tally, type World, type WorldOptions } from './world.ts';

let world: World;
const clock = fastClock(1);
const begin = async (options: WorldOptions = {}): Promise<World> =>
  (world = await startWorld({ clock, ...options }));
afterEach(async () => {
  expect(insideRetryAfter([...world.model.log, ...world.shop.log])).toEqual([]);
  await world.close();
});

const rateLimited = {
  error: { message: 'Rate limit reached', type: 'requests', code: 'rate_limit_exceeded' },
};
/** Time between a call's two attempts at the upstream. */
function pause({ model, shop }: World): number {
  const [first, second] = [...model.log, ...shop.log].slice(-2);
  return (second?.arrivedT ?? 0) - (first?.t ?? 0);
}

/** The calls that reached the upstream for one model, in order. */
const attempts = (log: readonly LogEntry[], model: string): readonly LogEntry[] =>
  log.filter((entry) => entry.model === model);

describe('a 429 that states a time is waited out, and the client sees only the final response,', () => {
  /** One model, and so one bucket, for each spelling, so that all of them wait side by side. */
  const sideBySide = async (
    spellings: Readonly<Record<string, Record<string, string>>>,
  ): Promise<Record<string, { statuses: number[]; pauseMs: number; at: number }>> => {
    const names = Object.keys(spellings);
    const models = Object.fromEntries(names.map((name) => [name, { rpm: 500 }]));
    const { chat, model } = await begin({ model: { models } });
    for (const name of names) {
      const headers = spellings[name] ?? {};
      model.fault({ kind: 'answer', status: 429, headers, body: rateLimited, match: { model: name } });
    }
    const replies = await Promise.all(names.map((name) => chat(1, { model: name })));
    expect(tally(replies)).toEqual({ 200: names.length });
    for (const { headers } of replies) {
      expect(headers.get('sluice-admission')).toMatch(/attempts=2, absorbed=1, held=\(closed;ms=\d+/);
    }
    const found = names.map((name) => {
      const [first, second] = attempts(model.log, name);
      const statuses = [first?.status ?? 0, second?.status ?? 0];
      return [name, { statuses, pauseMs: (second?.arrivedT ?? 0) - (first?.t ?? 0), at: second?.at ?? 0 }];
    });
    return Object.fromEntries(found);
  };

  test('for times in milliseconds, seconds, fractions and dates', async () => {
    const soon = new Date(clock.now() + 2_000).toUTCString();
    const found = await sideBySide({
      milliseconds: { 'retry-after-ms': '350', 'retry-after': '9' },
      seconds: { 'retry-after': '1' },
      fraction: { 'retry-after': '0.4' },
      date: { 'retry-after': soon },
    });
    const least = { milliseconds: 350, seconds: 1000, fraction: 400, date: 0 };
    expect(found['date']?.at).toBeGreaterThanOrEqual(Date.parse(soon));
    for (const [name, { statuses, pauseMs }] of Object.entries(found)) {
      expect(statuses).toEqual([429, 200]);
      expect(pauseMs).toBeGreaterThanOrEqual(least[name as keyof typeof least]);
    }
  });

  test('for an unreadable time by a pause of Sluice’s own, never in a hot loop', async () => {
    const garbage = ['soon', '-1', '0', 'Wed, 21 Oct 2015 07:28:00 GMT', ''];
    const spelled = garbage.map((text, at) => [`garbage-${at}`, { 'retry-after': text }]);
    const found = await sideBySide(Object.fromEntries(spelled));
    for (const { statuses, pauseMs } of Object.values(found)) {
      expect(statuses).toEqual([429, 200]);
      expect(pauseMs).toBeGreaterThanOrEqual(450);
    }
  });

  test('for the seconds with a fraction that a commerce API sends', async () => {
    const { orders, shop } = await begin({ clock: fastClock(10) });
    await orders(0);
    shop.fault({
      kind: 'answer',
      status: 429,
      headers: { 'Retry-After': '2.0', 'X-Shopify-Shop-Api-Call-Limit': '40/40' },
      body: { errors: 'Exceeded 2 calls per second for api client.' },
    });
    expect((await orders(1)).status).toBe(200);
    expect(pause(world)).toBeGreaterThanOrEqual(2000);
  });
});

describe('a GraphQL response with THROTTLED inside a 200', () => {
  const query = 'query { products(first: 90) { nodes { id } } }';

  test('is waited out for as long as the missing points need', async () => {
    const { graphql, shop } = await begin();
    shop.consume(2000, { api: 'graphql' });
    const response = await graphql(query);
    expect(response.json).toMatchObject({
      data: { products: {} },
      extensions: { cost: { actualQueryCost: expect.any(Number) } },
    });
    expect(shop.log.map(({ decision }) => decision)).toEqual(['throttled', 'admitted']);
    const [refused] = shop.log;
    expect(pause(world)).toBeGreaterThanOrEqual((refused?.waitMs ?? 0) - 20);
  });

  test.each([
    ['without code', { legacyThrottle: true }],
    ['without cost', { bareThrottle: true }],
  ])('is recognised %s', async (_name, variant) => {
    const base = { rows: 2, legacyThrottle: false, bareThrottle: false, http429: false };
    const { graphql, shop } = await begin({
      clock: fastClock(5),
      shop: { graphql: { ...base, ...variant } },
    });
    await graphql(query);
    shop.consume(2000, { api: 'graphql' });
    const response = await graphql(query);
    expect(response.json).toHaveProperty('data.products');
    expect(shop.log.at(-1)?.decision).toBe('admitted');
    expect(shop.log.length).toBeLessThanOrEqual(4);
  });
});

test('a closed bucket holds all calls: none is sent before the stated time, then all leave in order', async () => {
  const { chat, model, settled } = await begin();
  await chat(0);
  model.fault({ kind: 'answer', status: 429, headers: { 'retry-after-ms': '700' }, body: rateLimited });
  const first = chat(1);
  while (model.log.length < 2) await new Promise((resolve) => setTimeout(resolve, 2));
  await settled(1, 0);
  const others: ReturnType<typeof chat>[] = [];
  for (let at = 2; at < 12; at += 1) {
    others.push(chat(at));
    await settled(at, 0);
  }
  expect(model.log).toHaveLength(2);
  expect(tally(await Promise.all([first, ...others]))).toEqual({ 200: 11 });
  const closedAt = model.log[1]?.t ?? 0;
  const after = model.log.slice(2);
  expect(after.map(({ nonce }) => Number(nonce))).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  expect(after[0]?.arrivedT).toBeGreaterThanOrEqual(closedAt + 700);
});

test('a 429 that arrives late closes the bucket all the same', async () => {
  const { chat, model } = await begin();
  model.fault({ kind: 'late-429', ms: 200 });
  expect((await chat(1)).status).toBe(200);
  expect(model.log.length).toBeLessThanOrEqual(3);
});

test('an overloaded upstream is tried again later, and its stated wait is kept', async () => {
  const { chat, model } = await begin();
  model.configure({ overload: 'server_is_overloaded', overloadRetryAfterSeconds: 1 });
  const held = chat(1);
  while (model.log.length < 1) await new Promise((resolve) => setTimeout(resolve, 2));
  model.configure({ overload: null });
  expect((await held).status).toBe(200);
  expect(pause(world)).toBeGreaterThanOrEqual(1000);
});

test('a 429 that never ends is passed on when the wait of the call is over, and never makes the wait longer', async () => {
  const { chat, model } = await begin();
  model.fault({
    kind: 'answer',
    times: 100,
    status: 429,
    headers: { 'retry-after-ms': '800' },
    body: rateLimited,
  });
  const response = await chat(1, { headers: { prefer: 'wait=1' } });
  expect(response.status).toBe(429);
  expect(response.json).toHaveProperty('error.code');
  expect(model.log.length).toBeLessThanOrEqual(3);
});
