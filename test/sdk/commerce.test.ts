/** The official client of shops: what it reads and writes through Sluice, and what it sees of refusals. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import { closeAll, startWorld, type World } from '../journey/world.ts';

let world: World;
beforeEach(async () => (world = await startWorld()));
afterEach(closeAll);

const options = () => ({
  storeDomain: 'acme.myshopify.com',
  apiVersion: '2026-10',
  accessToken: world.gateway.keys['acme'] ?? '',
  customFetchApi: (url: string | URL, init?: RequestInit) => {
    const { pathname, search } = new URL(url);
    return fetch(`${world.gateway.url}/via/shop${pathname}${search}`, init);
  },
});

test('@shopify/admin-api-client reads and writes by REST', async () => {
  const client = createAdminRestApiClient(options());
  expect(await (await client.get('products/count')).json()).toEqual({ count: 120 });
  const made = await client.post('products', { data: { product: { title: 'Cup' } } });
  expect(made.status).toBe(201);
  expect(world.shop.log.map(({ key: sent }) => sent)).toEqual(['shpat_sim', 'shpat_sim']);
});

test('@shopify/admin-api-client sends GraphQL, gets the cost unchanged, and sees no THROTTLED when the bucket is empty', async () => {
  const client = createAdminApiClient(options());
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
