/** Whose fate is unknown: calls that may have run, and calls whose client has left. */
import { afterEach, describe, expect, test } from '@jest/globals';
import {
  closeAll,
  many,
  maxInFlight,
  metric,
  nonces,
  startWorld,
  type Sending,
  type World,
} from './world.ts';

const products = '/via/shop/admin/api/2026-10/products.json';
const cup: Sending = { json: { product: { title: 'Cup' } } };
const mutation = (more = '') =>
  `mutation { productCreate(product: { title: "Cup" }) ${more} { product { id } } }`;
const keyed = mutation('@idempotent(key: "6f5c1b1e-6a53-4a0e-b0a8-3f7f0a0c2c11")');

afterEach(closeAll);

describe('when it is unknown whether the upstream ran a call,', () => {
  const start = (): Promise<World> =>
    startWorld({
      modelMore: '    timeouts: { headSeconds: 1.5, idleSeconds: 0.3 }\n',
      shopMore: '    timeouts: { headSeconds: 1.5 }\n    maxInFlight: none\n',
    });

  test.each<
    [
      string,
      Parameters<World['shop']['fault']>[0]['kind'],
      number,
      string | null,
      (world: World) => Promise<unknown>,
    ]
  >([
    ['a creation', 'reset-before-response', 502, 'upstream_unreachable', ({ call }) => call(products, cup)],
    ['a creation', 'hang', 504, 'upstream_timeout', ({ call }) => call(products, cup)],
    ['a creation', '500', 500, null, ({ call }) => call(products, cup)],
    ['a creation', '502-html', 502, null, ({ call }) => call(products, cup)],
    ['a creation', '503', 503, null, ({ call }) => call(products, cup)],
    [
      'a GET that asks to be run as a POST',
      'reset-before-response',
      502,
      'upstream_unreachable',
      ({ call }) => call(products, { headers: { 'X-HTTP-Method-Override': 'POST' } }),
    ],
    [
      'a GET that asks for it in its query',
      'reset-before-response',
      502,
      'upstream_unreachable',
      ({ call }) => call(`${products}?_method=patch`),
    ],
    [
      'a mutation',
      'reset-before-response',
      502,
      'upstream_unreachable',
      ({ graphql }) => graphql(mutation()),
    ],
  ])('%s is not sent again after %s: %i %s', async (_name, kind, status, error, send) => {
    const world = await start();
    world.shop.fault({ kind } as Parameters<World['shop']['fault']>[0]);
    expect(await send(world)).toMatchObject({ status, error, shouldRetry: 'false' });
    expect(world.shop.log).toHaveLength(1);
  });

  test('a chat is not sent again, and its client may do so: it costs money, but changes nothing', async () => {
    const { chat, model } = await start();
    const answers: [number, string | null][] = [];
    for (const [at, kind] of (['reset-before-response', 'hang', '500', '502-html'] as const).entries()) {
      model.fault({ kind });
      const { status, shouldRetry } = await chat(at);
      answers.push([status, shouldRetry]);
    }
    expect(answers).toEqual([502, 504, 500, 502].map((status) => [status, null]));
    expect(nonces(model.log)).toEqual(['0', '1', '2', '3']);
  });

  test.each<[string, 'reset-before-response' | 'hang' | '500', (world: World) => Promise<unknown>]>([
    ['a read', 'reset-before-response', ({ orders }) => orders(1)],
    ['a read', 'hang', ({ orders }) => orders(1)],
    ['a read', '500', ({ orders }) => orders(1)],
    ['a GraphQL query', 'reset-before-response', ({ graphql }) => graphql('{ shop { name } }')],
    ['a mutation with a key of its own', 'reset-before-response', ({ graphql }) => graphql(keyed)],
  ])('%s, which may run twice, is sent once more after %s', async (_name, kind, send) => {
    const world = await start();
    world.shop.fault({ kind });
    const admission = expect.stringMatching(/attempts=2, absorbed=0(,|$)/);
    expect(await send(world)).toMatchObject({ status: 200, admission });
    expect(world.shop.log).toHaveLength(2);
  });

  test('a read is not sent a third time: the client gets an error', async () => {
    const { orders, shop } = await start();
    shop.fault({ kind: 'reset-before-response', times: 9 });
    expect(await orders(1)).toMatchObject({ status: 502, error: 'upstream_unreachable' });
    // Two attempts; one more where a connection was used before, because its idle end looks the same.
    expect([2, 3]).toContain(shop.log.length);
  });

  test('a response that breaks off is never repeated, and the client can see that it is not whole', async () => {
    const { model, call } = await start();
    model.fault({ kind: 'reset-mid-stream', afterChunks: 3 });
    const json = { model: 'gpt-4o', stream: true, messages: [{ role: 'user', content: 'hi' }] };
    await expect(call('/via/openai/v1/chat/completions', { json })).rejects.toThrow('terminated');
    expect(model.log).toHaveLength(1);
  });
});

describe('a call whose client leaves', () => {
  test('while it waits costs nothing upstream, and the next call takes its position', async () => {
    const { orders, shop, settled, occupy, gateway } = await startWorld();
    const release = await occupy();
    const leaving = new AbortController();
    const ended = Promise.allSettled(many(20, (at) => orders(100 + at, { signal: leaving.signal })));
    await settled(20);
    const last = orders(2);
    await settled(21);
    leaving.abort();
    expect(new Set((await ended).map(({ status }) => status))).toEqual(new Set(['rejected']));
    await settled(1);
    await release();
    expect((await last).status).toBe(200);
    expect(nonces(shop.log)).toEqual(['occupied', '2']);
    expect(await metric(gateway, 'sluice_dispatched_after_client_gone_total')).toBe(0);
  });

  test('at any moment of the journey leaves no lease behind', async () => {
    const { orders, shop, settled } = await startWorld({ shop: { latency: { minMs: 5, maxMs: 15 } } });
    const leaving = many(30, async (at) => {
      await new Promise((resolve) => setTimeout(resolve, at * 3));
      return orders(1 + at, { signal: AbortSignal.timeout(1 + ((at * 7) % 40)) });
    });
    await Promise.allSettled(leaving);
    await settled(0, 0);
    expect((await orders(99)).status).toBe(200);
    // The next call may leave a moment before the shop notices the closed connection of the last one.
    expect(maxInFlight(shop.log)).toBe(1);
  });
});
