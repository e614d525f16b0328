import { afterEach, expect, test } from '@jest/globals';
import {
  createCommerceSimulator,
  type CommerceOptions,
  type CommerceSimulator,
} from '../../simulators/commerce.ts';
import { manualClock } from '../support/manual-clock.ts';
import { sample } from '../support/recorded.ts';

const running: CommerceSimulator[] = [];

async function start(options: CommerceOptions = {}) {
  const clock = manualClock();
  const simulator = createCommerceSimulator({ clock, latency: { minMs: 0, maxMs: 0 }, ...options });
  running.push(simulator);
  const { url } = await simulator.listen();
  const send = (path: string, body?: unknown): Promise<Response> =>
    fetch(url + path, {
      headers: { 'x-shopify-access-token': 'shpat_sim', 'content-type': 'application/json' },
      ...(body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }),
    });
  const graphql = async (query: string) =>
    (await (await send('/admin/api/2026-10/graphql.json', { query })).json()) as CallResponse;
  return { simulator, clock, send, graphql };
}

interface CallResponse {
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

test('the simulated REST bucket counts from 1/40, refuses the 41st call as recorded (sample U33), and drains 2 per second', async () => {
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

test('the simulated GraphQL bucket answers 200 THROTTLED when points are short, takes none, and runs the query at the predicted instant (samples U35, U36)', async () => {
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
