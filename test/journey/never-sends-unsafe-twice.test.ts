import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { startWorld, type World } from './world.ts';

let world: World;
beforeAll(async () => {
  world = await startWorld({
    modelMore: '    timeouts: { headSeconds: 1.5, idleSeconds: 0.3 }\n',
    shopMore: '    timeouts: { headSeconds: 1.5 }\n    maxInFlight: none\n',
  });
});
beforeEach(() => {
  world.model.reset();
  world.shop.reset();
});
afterAll(() => world.close());

const products = '/via/shop/admin/api/2026-10/products.json';
const executions = (): number => world.shop.log.filter(({ executed }) => executed).length;

describe('when it is unknown whether the upstream ran a call,', () => {
  test('a creation whose connection was reset is not sent again', async () => {
    const { call, shop } = world;
    shop.fault({ kind: 'reset-before-response' });
    const reply = await call(products, { json: { product: { title: 'Cup' } } });
    expect([reply.status, reply.headers.get('x-should-retry')]).toEqual([502, 'false']);
    expect(reply.json).toMatchObject({ code: 'upstream_unreachable' });
    expect(executions()).toBe(1);
  });

  test('a creation without a timely response is not sent again', async () => {
    const { call, shop } = world;
    shop.fault({ kind: 'hang' });
    const reply = await call(products, { json: { product: { title: 'Cup' } } });
    expect([reply.status, reply.headers.get('x-should-retry')]).toEqual([504, 'false']);
    expect(reply.json).toMatchObject({ code: 'upstream_timeout' });
    expect(shop.log).toHaveLength(1);
  });

  test.each(['500', '502-html', '503'] as const)(
    'a creation with the response %s passes that on once',
    async (kind) => {
      const { call, shop } = world;
      shop.fault({ kind });
      const reply = await call(products, { json: { product: { title: 'Cup' } } });
      expect([reply.status, reply.headers.get('x-should-retry')]).toEqual([
        Number(kind.slice(0, 3)),
        'false',
      ]);
      expect(reply.headers.get('sluice-error')).toBeNull();
      expect(shop.log).toHaveLength(1);
    },
  );

  test.each([
    ['X-HTTP-Method-Override', 'POST'],
    ['x-http-method', 'patch'],
    ['X_Method_Override', 'POST'],
  ])('a GET that asks to be run otherwise (%s: %s) is not sent again', async (name, method) => {
    const { call, shop } = world;
    for (const kind of ['reset-before-response', '500'] as const) {
      shop.fault({ kind });
      const reply = await call(products, { headers: { [name]: method } });
      expect(reply.headers.get('x-should-retry')).toBe('false');
    }
    shop.fault({ kind: 'reset-before-response' });
    const reply = await call(`${products}?_method=${method}`);
    expect([reply.status, reply.headers.get('x-should-retry')]).toEqual([502, 'false']);
    expect(shop.log).toHaveLength(3);
  });

  test('a mutation is not sent again', async () => {
    const { graphql, shop } = world;
    shop.fault({ kind: 'reset-before-response' });
    const reply = await graphql('mutation { productCreate(product: { title: "Cup" }) { product { id } } }');
    expect([reply.status, reply.headers.get('x-should-retry')]).toEqual([502, 'false']);
    expect(shop.log).toHaveLength(1);
  });

  test('a chat is not sent again, and its client may do so: it costs money, but changes nothing', async () => {
    const { chat, model } = world;
    const answers: [number, string | null][] = [];
    for (const [at, kind] of (['reset-before-response', 'hang', '500', '502-html'] as const).entries()) {
      model.fault({ kind });
      const { status, headers } = await chat(at);
      answers.push([status, headers.get('x-should-retry')]);
    }
    expect(answers).toEqual([
      [502, null],
      [504, null],
      [500, null],
      [502, null],
    ]);
    expect(model.log.map(({ nonce }) => nonce)).toEqual(['0', '1', '2', '3']);
  });
});

describe('a call that may run twice is sent once more:', () => {
  test.each(['reset-before-response', 'hang', '500'] as const)('a read after %s', async (kind) => {
    const { orders, shop } = world;
    shop.fault({ kind });
    const reply = await orders(1);
    expect(reply.status).toBe(200);
    expect(reply.headers.get('sluice-admission')).toMatch(/attempts=2, absorbed=0(,|$)/);
    expect(shop.log).toHaveLength(2);
  });

  test('a GraphQL query', async () => {
    const { graphql, shop } = world;
    shop.fault({ kind: 'reset-before-response' });
    expect((await graphql('{ shop { name } }')).status).toBe(200);
    expect(shop.log).toHaveLength(2);
  });

  test('a mutation with an idempotency key of its own', async () => {
    const { graphql, shop } = world;
    shop.fault({ kind: 'reset-before-response' });
    const document =
      'mutation { productCreate(product: { title: "Cup" }) @idempotent(key: "6f5c1b1e-6a53-4a0e-b0a8-3f7f0a0c2c11") { product { id } } }';
    expect((await graphql(document)).status).toBe(200);
    expect(shop.log.map(({ executed }) => executed)).toEqual([true, false]);
  });

  test('a read, but not a third time: the client gets an error', async () => {
    const { orders, shop } = world;
    shop.fault({ kind: 'reset-before-response', times: 9 });
    const reply = await orders(1);
    expect([reply.status, reply.headers.get('sluice-error')]).toEqual([502, 'upstream_unreachable']);
    // Two attempts; one more where a connection was used before, because its idle end looks the same.
    expect([2, 3]).toContain(shop.log.length);
  });
});

test('a response that breaks off is never repeated, and the client can see that it is not whole', async () => {
  const { model, gateway } = world;
  model.fault({ kind: 'reset-mid-stream', afterChunks: 3 });
  const response = await fetch(`${gateway.url}/via/openai/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${gateway.keys['acme'] ?? ''}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'gpt-4o', stream: true, messages: [{ role: 'user', content: 'hi' }] }),
  });
  expect(response.status).toBe(200);
  await expect(response.text()).rejects.toThrow();
  expect(model.log).toHaveLength(1);
});
