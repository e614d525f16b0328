/** Clients of shops: what they read and write through Sluice, and what they see of refusals. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import Shopify from 'shopify-api-node';
import { closeAll, startWorld, type World } from '../journey/world.ts';
import { throughProxy } from './through-proxy.ts';

let world: World;
beforeEach(async () => (world = await startWorld()));
afterEach(closeAll);

const key = (): string => world.gateway.keys['acme'] ?? '';

/** Its `baseUrl` has no place for a path, so the path of `/via/` is put in front by its hook. */
function shopifyApiNode(more: { timeout?: number; maxRetries?: number } = {}): Shopify {
  const forward = ({ url }: { url: URL }): void => {
    if (!url.pathname.startsWith('/via/shop')) url.pathname = `/via/shop${url.pathname}`;
  };
  const options = { shopName: 'acme', accessToken: key(), apiVersion: '2026-10', ...more };
  const client = new Shopify({ ...options, hooks: { beforeRequest: [forward] } });
  // Its own documentation has no option for another host; the property is public.
  const port = Number(new URL(world.gateway.url).port);
  return Object.assign(client, { baseUrl: { hostname: '127.0.0.1', port, protocol: 'http:' } });
}

type Fetch = (url: string | URL, init?: RequestInit) => Promise<Response>;
const via: Fetch = (url, init) => {
  const { pathname, search } = new URL(url);
  return fetch(`${world.gateway.url}/via/shop${pathname}${search}`, init);
};
const proxy: Fetch = (url, init) => {
  const { pathname, search } = new URL(url);
  return throughProxy(world.gateway.url)(world.shopUrl + pathname + search, init);
};
const options = (form: Fetch) => ({
  storeDomain: 'acme.myshopify.com',
  apiVersion: '2026-10',
  accessToken: key(),
  customFetchApi: form,
});

describe.each([
  ['/via/', via],
  ['/proxy', proxy],
] as const)('@shopify/admin-api-client through %s', (_name, form) => {
  test('reads and writes by REST', async () => {
    const client = createAdminRestApiClient(options(form));
    expect(await (await client.get('products/count')).json()).toEqual({ count: 120 });
    const made = await client.post('products', { data: { product: { title: 'Cup' } } });
    expect(made.status).toBe(201);
    expect(world.shop.log.map(({ key: sent }) => sent)).toEqual(['shpat_sim', 'shpat_sim']);
  });

  test('sends GraphQL, gets the cost unchanged, and sees no THROTTLED when the bucket is empty', async () => {
    const client = createAdminApiClient(options(form));
    const query = 'query($n: Int) { products(first: $n) { nodes { id title } } }';
    const response = await client.request(query, { variables: { n: 1 } });
    expect(response.data).toMatchObject({ products: { nodes: [{ title: 'title 1' }] } });
    const throttleStatus = { maximumAvailable: 2000, restoreRate: 100 };
    expect(response.extensions).toMatchObject({ cost: { requestedQueryCost: 3, throttleStatus } });
    world.shop.consume(2000, { api: 'graphql' });
    const later = await client.request('{ products(first: 20) { nodes { id } } }');
    expect(later.errors).toBeUndefined();
    expect(later.data).toHaveProperty('products');
  });
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

  test('times out after 1.5 s and repeats its POST, which is executed at most once', async () => {
    await shopifyApiNode().order.list({ limit: 1 });
    world.shop.fault({ kind: 'slow', ms: 8_000, times: 5 });
    const client = shopifyApiNode({ timeout: 1_500, maxRetries: 1 });
    await expect(client.product.create({ title: 'Cup' })).rejects.toThrow();
    const posts = world.shop.log.filter(({ method, executed }) => method === 'POST' && executed);
    expect(posts).toHaveLength(1);
  });
});
