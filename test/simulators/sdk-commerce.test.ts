import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import Shopify from 'shopify-api-node';
import { systemClock, type Clock } from '../../src/clock.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';

/** Time that stands still: what is used up stays so. */
const clock: Clock = { ...systemClock, now: () => 1_700_000_000_000, monotonic: () => 0 };
const simulator = createCommerceSimulator({ clock, latency: { minMs: 0, maxMs: 0 } });
let port = 0;

beforeAll(async () => {
  ({ port } = await simulator.listen());
});
beforeEach(() => simulator.reset());
afterAll(async () => {
  expect(simulator.state().failures).toEqual([]);
  await simulator.close();
});

describe('shopify-api-node', () => {
  function client(): Shopify {
    const shop = new Shopify({ shopName: 'acme', accessToken: 'shpat_sim', apiVersion: '2026-10' });
    // Its own documentation has no option for another host; the property is public.
    Object.assign(shop, { baseUrl: { hostname: '127.0.0.1', port, protocol: 'http:' } });
    return shop;
  }

  test('lists, pages, creates, and reads the call limit', async () => {
    const shop = client();
    const first = await shop.product.list({ limit: 50 });
    expect(first).toHaveLength(50);
    const next = await shop.product.list(first.nextPageParameters ?? {});
    expect(next).toHaveLength(50);
    expect(await shop.product.create({ title: 'Cup' })).toMatchObject({ title: 'Cup', status: 'active' });
    expect(shop.callLimits).toMatchObject({ max: 40, current: 3 });
    expect(simulator.log.filter(({ bodyHash }) => bodyHash !== '')).toHaveLength(1);
  });

  test('reads GraphQL cost, and throws what the API says', async () => {
    const shop = client();
    const query = '{ customers(first: 10) { edges { node { id } } } }';
    expect(await shop.graphql(query)).toHaveProperty('customers.edges.1.node.id');
    expect(shop.callGraphqlLimits).toMatchObject({
      requestedQueryCost: 12,
      actualQueryCost: 4,
      restoreRate: 100,
    });
    simulator.consume(2000, { api: 'graphql' });
    await expect(shop.graphql(query)).rejects.toThrow('Throttled');
    simulator.consume(40);
    await expect(shop.order.list()).rejects.toMatchObject({ response: { statusCode: 429 } });
  });
});

describe('@shopify/admin-api-client', () => {
  const local = async (url: string | URL, init?: RequestInit): Promise<Response> => {
    const { pathname, search } = new URL(url);
    return await fetch(`http://127.0.0.1:${port}${pathname}${search}`, init);
  };
  const options = { storeDomain: 'acme.myshopify.com', apiVersion: '2026-10', accessToken: 'shpat_sim' };

  test('returns data by GraphQL, and errors with the code THROTTLED when throttled', async () => {
    const client = createAdminApiClient({ ...options, customFetchApi: local });
    const response = await client.request('query($n: Int) { products(first: $n) { nodes { id title } } }', {
      variables: { n: 1 },
    });
    expect(response.data).toMatchObject({ products: { nodes: [{ title: 'title 1' }] } });
    simulator.consume(2000, { api: 'graphql' });
    const refused = await client.request('{ products(first: 100) { nodes { id } } }');
    expect(refused.errors?.graphQLErrors?.[0]).toMatchObject({ extensions: { code: 'THROTTLED' } });
  });

  test('reads by REST, and sees the 429 with its Retry-After', async () => {
    const client = createAdminRestApiClient({ ...options, customFetchApi: local });
    expect(await (await client.get('products/count')).json()).toEqual({ count: 120 });
    simulator.consume(40);
    const refused = await client.get('products');
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([429, '2.0']);
  });
});
