import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import Shopify from 'shopify-api-node';
import { fastClock } from '../support/fast-clock.ts';
import { watchOrder } from '../journey/order.ts';
import { startWorld, tally, type World } from '../journey/world.ts';

let world: World;
beforeEach(async () => (world = await startWorld()));
afterEach(() => world.close());

const key = (): string => world.gateway.keys['acme'] ?? '';

/** Its `baseUrl` has no place for a path, so the path of `/via/` is put in front by its hook. */
function shopifyApiNode(more: { timeout?: number; maxRetries?: number; upstream?: string } = {}): Shopify {
  const { upstream = 'shop', ...options } = more;
  const prefix = `/via/${upstream}`;
  const client = new Shopify({
    shopName: 'acme',
    accessToken: key(),
    apiVersion: '2026-10',
    ...options,
    hooks: {
      beforeRequest: [
        ({ url }) => {
          if (!url.pathname.startsWith(prefix)) url.pathname = prefix + url.pathname;
        },
      ],
    },
  });
  // Its own documentation has no option for another host; the property is public.
  const { port } = new URL(world.gateway.url);
  Object.assign(client, { baseUrl: { hostname: '127.0.0.1', port: Number(port), protocol: 'http:' } });
  return client;
}

function viaUrl(url: string | URL): string {
  const { pathname, search } = new URL(url);
  return `${world.gateway.url}/via/shop${pathname}${search}`;
}
function proxyUrl(url: string | URL): string {
  const { pathname, search } = new URL(url);
  return `${world.gateway.url}/proxy?target=${encodeURIComponent(`${world.shopUrl}${pathname}${search}`)}`;
}
const options = (form: (url: string | URL) => string) => ({
  storeDomain: 'acme.myshopify.com',
  apiVersion: '2026-10',
  accessToken: key(),
  customFetchApi: (url: string | URL, init?: RequestInit): Promise<Response> => fetch(form(url), init),
});

describe.each([
  ['/via/', viaUrl],
  ['/proxy', proxyUrl],
] as const)('@shopify/admin-api-client through %s', (_name, form) => {
  test('reads and writes by REST', async () => {
    const client = createAdminRestApiClient(options(form));
    expect(await (await client.get('products/count')).json()).toEqual({ count: 120 });
    const made = await client.post('products', { data: { product: { title: 'Cup' } } });
    expect(made.status).toBe(201);
    expect(world.shop.log.map(({ key: sent }) => sent)).toEqual(['shpat_sim', 'shpat_sim']);
  });

  test('sends GraphQL and gets the cost of the upstream unchanged', async () => {
    const client = createAdminApiClient(options(form));
    const query = 'query($n: Int) { products(first: $n) { nodes { id title } } }';
    const response = await client.request(query, { variables: { n: 1 } });
    expect(response.data).toMatchObject({ products: { nodes: [{ title: 'title 1' }] } });
    expect(response.extensions).toMatchObject({
      cost: { requestedQueryCost: 3, throttleStatus: { maximumAvailable: 2000, restoreRate: 100 } },
    });
  });

  test('sees neither a 429 nor a THROTTLED when the bucket is empty', async () => {
    const { shop } = world;
    const graphql = createAdminApiClient(options(form));
    shop.consume(2000, { api: 'graphql' });
    const response = await graphql.request('{ products(first: 20) { nodes { id } } }');
    expect(response.errors).toBeUndefined();
    expect(response.data).toHaveProperty('products');
  });
});

test('admin-api-client with retries: 3 repeats a refusal within milliseconds, and only the first attempt reaches the upstream', async () => {
  const { shop } = world;
  const client = createAdminRestApiClient(options(viaUrl));
  const body = { errors: 'Exceeded 2 calls per second for api client.' };
  shop.fault({ kind: 'answer', status: 429, headers: { 'Retry-After': '80.0' }, body, times: 9 });
  const response = await client.get('orders', { retries: 3 });
  expect(response.status).toBe(429);
  expect(response.headers.get('sluice-error')).toBe('wait_too_long');
  expect(shop.log).toHaveLength(1);
});

test('ten queries of 500 points at once on 2,000 are answered in order without THROTTLED, at the upstream’s cost', async () => {
  await world.close();
  world = await startWorld({ shopMore: '    maxInFlight: none\n' });
  const { shop, graphql, settled } = world;
  const query = '# sim: requested=500 actual=20 ms=200\nquery($nonce: String) { shop { name } }';
  await graphql(query);
  const order = watchOrder();
  const responses = Array.from({ length: 10 }, (_, at) =>
    graphql(query, { variables: { nonce: String(at) }, headers: { 'x-nonce': String(at) } }),
  );
  for (const { json } of await Promise.all(responses)) {
    expect(json).toMatchObject({
      data: {},
      extensions: {
        cost: { requestedQueryCost: 500, actualQueryCost: 20, throttleStatus: { maximumAvailable: 2000 } },
      },
    });
  }
  expect(shop.log.map(({ decision }) => decision)).toEqual(Array.from({ length: 11 }, () => 'admitted'));
  order.stop();
  expect(order.sent).toHaveLength(10);
  expect(order.sent).toEqual(order.arrived);
  await settled(0, 0);
});

test('the larger bucket of a Plus store is learned from its first response', async () => {
  await world.close();
  world = await startWorld({
    shop: { stores: { 'acme.myshopify.com': { plan: 'plus', apps: { 'app-sim': ['shpat_sim'] } } } },
  });
  const client = createAdminRestApiClient(options(viaUrl));
  const responses = await Promise.all(Array.from({ length: 100 }, () => client.get('products/count')));
  expect(tally(responses)).toEqual({ 200: 100 });
  expect(tally(world.shop.log)).toEqual({ 200: 100 });
  // 60 calls beyond the 40 that were assumed would have taken 30 s.
  const times = world.shop.log.map(({ t }) => t);
  expect(Math.max(...times) - Math.min(...times)).toBeLessThan(15_000);
});

test('a refusal for an order limit that lasts longer than the call can wait is passed on, and the store stays open', async () => {
  await world.close();
  const store = { apps: { 'app-sim': ['shpat_sim'] }, devOrderLimit: 2 };
  world = await startWorld({ shop: { stores: { 'acme.myshopify.com': store } } });
  const client = createAdminRestApiClient(options(viaUrl));
  const headers = { prefer: 'wait=45' };
  const order = { headers, data: { order: { line_items: [{ title: 'Cup', price: '1.00', quantity: 1 }] } } };
  const made = [
    await client.post('orders', order),
    await client.post('orders', order),
    await client.post('orders', order),
  ];
  expect(made.map(({ status }) => status)).toEqual([201, 201, 429]);
  expect(made[2]?.headers.get('x-should-retry')).toBe('false');
  expect((await client.get('orders')).status).toBe(200);
  expect(world.shop.log).toHaveLength(4);
});

test('a refusal of a locked store is passed on at once, once for each call', async () => {
  const { shop } = world;
  shop.configure({
    stores: { 'acme.myshopify.com': { state: 'locked', apps: { 'app-sim': ['shpat_sim'] } } },
  });
  const client = shopifyApiNode({ maxRetries: 3 });
  await expect(client.order.list()).rejects.toMatchObject({ response: { statusCode: 423 } });
  expect(shop.log).toHaveLength(1);
});

describe('shopify-api-node', () => {
  test('lists, follows the next page through Sluice, creates, and reads the call limit', async () => {
    const client = shopifyApiNode();
    const first = await client.product.list({ limit: 50 });
    expect(first).toHaveLength(50);
    const next = await client.product.list(first.nextPageParameters ?? {});
    expect(next.map(({ id }) => id)).not.toContain(first[0]?.id);
    expect(await client.product.create({ title: 'Cup' })).toMatchObject({ title: 'Cup' });
    // As the upstream said last: 3, or less where its bucket has leaked between the calls.
    const level = world.shop.log.at(-1)?.usedAfter['rest'] ?? NaN;
    expect(client.callLimits).toMatchObject({ max: 40, current: Math.ceil(level - 1e-6) });
    expect(world.shop.log.map(({ key: sent }) => sent)).toEqual(['shpat_sim', 'shpat_sim', 'shpat_sim']);
  });

  test('sends 60 calls at once on 40 + 2/s and sees no 429', async () => {
    await world.close();
    world = await startWorld({ clock: fastClock(8) });
    const client = shopifyApiNode();
    const lists = await Promise.all(Array.from({ length: 60 }, () => client.order.list({ limit: 1 })));
    expect(lists).toHaveLength(60);
    expect(Math.max(...world.shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
    expect(world.shop.log.filter(({ insideRetryAfter }) => insideRetryAfter)).toEqual([]);
  });

  test('times out after 1.5 s and repeats its POST, which is executed at most once', async () => {
    const { shop } = world;
    await shopifyApiNode().order.list({ limit: 1 });
    shop.fault({ kind: 'slow', ms: 8_000, times: 5 });
    const client = shopifyApiNode({ timeout: 1_500, maxRetries: 1 });
    await expect(client.product.create({ title: 'Cup' })).rejects.toThrow();
    expect(shop.log.filter(({ method, executed }) => method === 'POST' && executed)).toHaveLength(1);
  });

  test('reads the cost of GraphQL, and gets a refusal by Sluice as an error with its status', async () => {
    const client = shopifyApiNode();
    await client.graphql('{ customers(first: 10) { edges { node { id } } } }');
    expect(client.callGraphqlLimits).toMatchObject({
      requestedQueryCost: 12,
      actualQueryCost: 4,
      restoreRate: 100,
    });
    await expect(shopifyApiNode({ upstream: 'none' }).order.list()).rejects.toMatchObject({
      response: { statusCode: 403 },
    });
  });
});
