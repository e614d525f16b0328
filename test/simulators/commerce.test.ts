import { afterEach, describe, expect, test } from '@jest/globals';
import {
  createCommerceSimulator,
  type CommerceOptions,
  type CommerceSimulator,
} from '../../simulators/commerce.ts';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { sample } from './samples.ts';

const running: CommerceSimulator[] = [];
type Send = (path: string, body?: unknown, headers?: Record<string, string>) => Promise<Response>;

async function start(options: CommerceOptions = {}): Promise<{
  simulator: CommerceSimulator;
  clock: ManualClock;
  send: Send;
  graphql: (query: string, more?: object) => Promise<CallResponse>;
}> {
  const clock = manualClock();
  const simulator = createCommerceSimulator({ clock, latency: { minMs: 0, maxMs: 0 }, ...options });
  running.push(simulator);
  const { url } = await simulator.listen();
  const send: Send = async (path, body, headers = {}) =>
    await fetch(url + path, {
      method: body === undefined ? 'GET' : 'POST',
      headers: { 'x-shopify-access-token': 'shpat_sim', 'content-type': 'application/json', ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  const graphql = async (query: string, more: object = {}): Promise<CallResponse> =>
    (await (await send('/admin/api/2026-10/graphql.json', { query, ...more })).json()) as CallResponse;
  return { simulator, clock, send, graphql };
}

interface CallResponse {
  data?: Record<string, unknown>;
  errors?: { message: string; extensions?: { code: string } }[];
  extensions?: { cost: { requestedQueryCost: number; actualQueryCost: number; throttleStatus: object } };
}

afterEach(async () => {
  for (const simulator of running.splice(0)) {
    expect(simulator.state().failures).toEqual([]);
    await simulator.close();
  }
});

const products = '/admin/api/2026-10/products.json?limit=1';
const limitOf = (response: Response): string | null => response.headers.get('x-shopify-shop-api-call-limit');

describe('the simulated REST bucket', () => {
  test('counts from 1/40, refuses the 41st call as recorded (sample U33), and drains 2 per second', async () => {
    const { send, clock, simulator } = await start();
    expect(limitOf(await send(products))).toBe('1/40');
    simulator.consume(39);
    const refused = await send(products);
    expect([refused.status, limitOf(refused), refused.headers.get('retry-after')]).toEqual([
      429,
      '40/40',
      '2.0',
    ]);
    expect(await refused.json()).toEqual(sample('U33').body);
    clock.advance(499);
    expect((await send(products)).status).toBe(429);
    expect(simulator.log.at(-1)).toMatchObject({ decision: 'throttled', waitMs: 1, insideRetryAfter: true });
    clock.advance(1);
    expect(limitOf(await send(products))).toBe('40/40');
  });

  test('belongs to one app in one store, whatever the token, version or name of the host', async () => {
    const apps = { one: ['t1', 't2'], two: ['t3'] };
    const { send } = await start({
      stores: { 'acme.myshopify.com': { apps }, 'other.myshopify.com': { plan: 'plus', apps } },
    });
    const token = (value: string, store = ''): Record<string, string> => ({
      'x-shopify-access-token': value,
      ...(store === '' ? {} : { 'x-sim-store': store }),
    });
    expect(limitOf(await send(products, undefined, token('t1')))).toBe('1/40');
    const older = products.replace('2026-10', '2026-01');
    expect(limitOf(await send(older, undefined, token('t2', 'acme.localhost')))).toBe('2/40');
    expect(limitOf(await send(products, undefined, token('t3')))).toBe('1/40');
    expect(limitOf(await send(products, undefined, token('t1', 'other.myshopify.com')))).toBe('1/400');
    expect((await send(products, undefined, token('t1', 'unknown.example'))).status).toBe(404);
    expect((await send(products, undefined, token('wrong'))).status).toBe(401);
  });

  test('a development store refuses orders with a low call limit and no Retry-After', async () => {
    const stores = { 'dev.myshopify.com': { apps: { app: ['shpat_sim'] }, devOrderLimit: 1 } };
    const { send, clock } = await start({ stores });
    const order = { order: { line_items: [{ title: 'a' }] } };
    const path = '/admin/api/2026-10/orders.json';
    expect((await send(path, order)).status).toBe(201);
    const refused = await send(path, order);
    expect([refused.status, limitOf(refused), refused.headers.get('retry-after')]).toEqual([
      429,
      '2/40',
      null,
    ]);
    clock.advance(60_000);
    expect((await send(path, order)).status).toBe(201);
  });

  test('names the call-limit field as configured', async () => {
    const { send, simulator } = await start({ callLimitField: 'commerce' });
    expect((await send(products)).headers.get('x-commerce-shop-api-call-limit')).toBe('1/40');
    simulator.configure({ callLimitField: 'all' });
    const all = Object.fromEntries((await send(products)).headers);
    expect(all).toMatchObject({
      'x-commerce-shop-api-call-limit': '2/40',
      'x-shopify-shop-api-call-limit': '2/40',
      http_x_shopify_shop_api_call_limit: '2/40',
    });
  });

  test('is not used by a store in an error state, and too many refusals lock the store', async () => {
    const apps = { app: ['shpat_sim'] };
    const { send, simulator } = await start({ maxRefusalsPerMinute: 1 });
    for (const [state, status] of [
      ['frozen', 402],
      ['locked', 423],
      ['security', 430],
    ] as const) {
      simulator.configure({ stores: { 'acme.myshopify.com': { apps, state } } });
      expect((await send(products)).status).toBe(status);
    }
    expect(simulator.state().buckets).toEqual({});
    simulator.configure({ stores: { 'acme.myshopify.com': { apps } } });
    simulator.consume(40, { app: 'app' });
    const statuses = [];
    for (let n = 0; n < 3; n += 1) statuses.push((await send(products)).status);
    expect(statuses).toEqual([429, 429, 423]);
  });
});

describe('the simulated resources', () => {
  test('keep ids beyond 2^53 digit by digit and page by absolute links', async () => {
    const { send } = await start({ seededResources: 3 });
    const first = await send(products);
    expect(await first.text()).toContain('"id":9007199254740993,');
    const next = /<(http[^>]+)>; rel="next"/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
    const second = await send(new URL(next).pathname + new URL(next).search);
    expect(await second.text()).toContain('"id":9007199254740995,');
    expect(second.headers.get('link')).toMatch(/rel="previous".*rel="next"/);
  });

  test('are created, refused when invalid, missing when unknown, and finished later when asynchronous', async () => {
    const { send } = await start();
    const at = (name: string): string => `/admin/api/2026-10/${name}.json`;
    expect((await send(at('products'), { product: { title: 'Cup' } })).status).toBe(201);
    expect((await send(at('products'), { product: {} })).status).toBe(422);
    expect((await send(at('products'), {})).status).toBe(400);
    expect((await send(at('products/1'))).status).toBe(404);
    const adjust = { inventory_item_id: 5, location_id: 1, available_adjustment: 3 };
    expect(await (await send(at('inventory_levels/adjust'), adjust)).json()).toMatchObject({
      inventory_level: { available: 3 },
    });
    const job = await send(at('jobs'), {});
    expect(job.status).toBe(202);
    const location = new URL(job.headers.get('location') ?? '');
    expect(await (await send(location.pathname)).json()).toMatchObject({ job: { done: true } });
  });

  test('are logged by hash when a body was executed, and not when it was refused', async () => {
    const { send, simulator } = await start();
    const product = { product: { title: 'Cup' } };
    simulator.fault({ kind: 'reset-before-response' });
    await expect(send('/admin/api/2026-10/products.json', product, { 'x-nonce': 'a' })).rejects.toThrow();
    simulator.fault({ kind: 'reset-before-execution' });
    await expect(send('/admin/api/2026-10/products.json', product, { 'x-nonce': 'b' })).rejects.toThrow();
    await send('/admin/api/2026-10/products.json', product, { 'x-nonce': 'c' });
    const seen = simulator.log.map(({ nonce, executed, bodyHash }) => [nonce, executed, bodyHash.length]);
    expect(seen).toEqual([
      ['a', true, 64],
      ['b', false, 0],
      ['c', true, 64],
    ]);
    expect(simulator.log[0]?.bodyHash).toBe(simulator.log[2]?.bodyHash);
  });
});

describe('the simulated GraphQL bucket', () => {
  const customers = '{ customers(first: 10) { edges { node { id } } } }';

  test('charges 12 for a page of ten, and gives unused points back before the response', async () => {
    const { graphql } = await start();
    const { extensions, data } = await graphql(customers);
    expect(extensions?.cost).toEqual({
      requestedQueryCost: 12,
      actualQueryCost: 4,
      throttleStatus: { maximumAvailable: 2000, currentlyAvailable: 1996, restoreRate: 100 },
    });
    expect(data).toMatchObject({ customers: { edges: [{ node: {} }, { node: {} }] } });
  });

  test('counts variables, fragments, aliases and type conditions', async () => {
    const { graphql } = await start();
    const query = `query Q($n: Int = 5) { a: products(first: $n) { nodes { ...P } } node(id: 1) { ... on A { x { y } } ... on B { z } } }
      fragment P on Product { id image { url } }`;
    const cost = async (more: object): Promise<number | undefined> =>
      (await graphql(query, more)).extensions?.cost.requestedQueryCost;
    expect(await cost({})).toBe(2 + 5 * 2 + 1);
    expect(await cost({ variables: { n: 50 } })).toBe(2 + 50 * 2 + 1);
  });

  test('answers 200 THROTTLED when points are short, takes none, and runs the query at the predicted instant (samples U35, U36)', async () => {
    const plan = { limit: 40, leak: 2, max: 1000, restore: 50 };
    const { graphql, simulator, clock } = await start({
      stores: { 'acme.myshopify.com': { plan, apps: { app: ['shpat_sim'] } } },
    });
    simulator.consume(798, { api: 'graphql', app: 'app' });
    const query = `# sim: requested=452 actual=20 ms=0\n{ shop { name } }`;
    expect(await graphql(query)).toEqual({
      errors: sample('U36').body.errors,
      extensions: sample('U35').body.extensions,
    });
    simulator.configure({
      graphql: { rows: 2, legacyThrottle: true, bareThrottle: false, http429: false },
    });
    expect(await graphql(query)).toEqual(sample('U35').body);
    clock.advance(4999);
    expect((await graphql(query)).errors?.[0]?.message).toBe('Throttled');
    clock.advance(1);
    expect((await graphql(query)).extensions?.cost).toMatchObject({
      actualQueryCost: 20,
      throttleStatus: { currentlyAvailable: 432 },
    });
  });

  test('refuses a query of more than 1000 points permanently, and takes nothing (sample U37)', async () => {
    const { graphql, simulator } = await start();
    expect(await graphql('# sim: requested=2003\n{ shop { name } }')).toEqual(sample('U37').body);
    expect(simulator.log[0]).toMatchObject({ decision: 'max-cost', usedAfter: { graphql: 0 } });
  });

  test('holds the whole requested cost of parallel queries', async () => {
    const { send, clock, simulator } = await start();
    const query = '# sim: requested=500 actual=20 ms=300\n{ shop { name } }';
    const calls = Array.from({ length: 5 }, () => send('/admin/api/2026-10/graphql.json', { query }));
    const responses = Promise.all(calls.map(async (call) => (await (await call).json()) as CallResponse));
    while (simulator.log.length < 5) await new Promise((resolve) => setImmediate(resolve));
    expect(simulator.log.map(({ decision }) => decision).sort()).toEqual([
      'admitted',
      'admitted',
      'admitted',
      'admitted',
      'throttled',
    ]);
    expect(Math.max(...simulator.log.map(({ inFlight }) => inFlight.scope))).toBe(5);
    clock.advance(300);
    expect((await responses).filter(({ data }) => data !== undefined)).toHaveLength(4);
  });

  test('runs a mutation once for an idempotency key, and refuses it with other variables', async () => {
    const { graphql, simulator } = await start();
    const query =
      'mutation($n: Int) { refundCreate(n: $n) @idempotent(key: "k") { refund { id } userErrors { field } } }';
    const first = await graphql(query, { variables: { n: 1 } });
    expect((await graphql(query, { variables: { n: 1 } })).data).toEqual(first.data);
    expect((await graphql(query, { variables: { n: 2 } })).errors?.[0]?.extensions?.code).toBe(
      'IDEMPOTENCY_KEY_PARAMETER_MISMATCH',
    );
    expect(simulator.log.map(({ executed }) => executed)).toEqual([true, false, false]);
  });

  test('shrinks for a while on demand, and is filled by an outside consumer', async () => {
    const { graphql, simulator, clock } = await start();
    simulator.fault({ kind: 'reduce', ms: 10_000 });
    const status = async (): Promise<object | undefined> =>
      (await graphql('{ shop { name } }')).extensions?.cost.throttleStatus;
    expect(await status()).toMatchObject({ maximumAvailable: 200, restoreRate: 10 });
    clock.advance(10_000);
    expect(await status()).toMatchObject({ maximumAvailable: 2000, restoreRate: 100 });
    simulator.fault({ kind: 'otherConsumer', perSecond: 300 });
    await status();
    clock.advance(5000);
    expect(await status()).toMatchObject({ currentlyAvailable: 2000 - 2 - 5 * (300 - 100) - 1 });
  });

  test('answers broken documents and fragment loops instead of failing', async () => {
    const { graphql } = await start();
    const loop = '{ ...F } fragment F on Q { a { ...F } }';
    for (const query of ['{', '', loop, '{ ...Missing }', 'fragment A on Q { a }', '{'.repeat(30_000)]) {
      const { data, errors } = await graphql(query);
      expect([data, errors?.[0]?.message]).toEqual([undefined, expect.any(String)]);
    }
  });
});

test('the simulated Storefront limits bots and carts only', async () => {
  const { send } = await start({ storefront: { cartsPerMinute: 1, anonymousPerMinute: 2 } });
  const path = '/api/2026-10/graphql.json';
  const buyer = { 'shopify-storefront-buyer-ip': '192.0.2.1' };
  const cart = { query: 'mutation { cartCreate { cart { id } } }' };
  expect(await (await send(path, cart, buyer)).json()).toHaveProperty('data.cartCreate.cart.id');
  expect(await (await send(path, cart, buyer)).json()).toEqual({ errors: [{ message: 'Throttled' }] });
  const shop = { query: '{ shop { name } }' };
  const statuses = [];
  for (let n = 0; n < 3; n += 1) statuses.push((await send(path, shop)).status);
  expect(statuses).toEqual([200, 200, 430]);
});
