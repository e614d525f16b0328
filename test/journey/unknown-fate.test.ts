/** When it is unknown whether the upstream ran a call. Every cell of that table: `test/dispatch/resend.test.ts`. */
import { afterEach, expect, test } from '@jest/globals';
import { closeAll, nonces, startWorld, type Reply, type Sending, type World } from './world.ts';

const products = '/via/shop/admin/api/2026-10/products.json';
const cup: Sending = { json: { product: { title: 'Cup' } } };
const mutation = (more = '') =>
  `mutation { productCreate(product: { title: "Cup" }) ${more} { product { id } } }`;
const keyed = mutation('@idempotent(key: "6f5c1b1e-6a53-4a0e-b0a8-3f7f0a0c2c11")');
const asPost: Sending = { headers: { 'X-HTTP-Method-Override': 'POST' } };

afterEach(closeAll);
const start = (): Promise<World> =>
  startWorld({
    modelMore: '    timeouts: { headSeconds: 1.5 }\n',
    shopMore: '    timeouts: { headSeconds: 1.5 }\n    maxInFlight: none\n',
  });

const reset = 'reset-before-response';
const unreachable = { status: 502, error: 'upstream_unreachable' };
test.each<[string, typeof reset | 'hang', (world: World) => Promise<Reply>, object | null]>([
  ['a creation', reset, ({ call }) => call(products, cup), unreachable],
  ['a creation', 'hang', ({ call }) => call(products, cup), { status: 504, error: 'upstream_timeout' }],
  ['a GET that asks to be run as a POST', reset, ({ call }) => call(products, asPost), unreachable],
  ['a mutation', reset, ({ graphql }) => graphql(mutation()), unreachable],
  ['a read', reset, ({ orders }) => orders(1), null],
  ['a read', 'hang', ({ orders }) => orders(1), null],
  ['a GraphQL query', reset, ({ graphql }) => graphql('{ shop { name } }'), null],
  ['a mutation with a key of its own', reset, ({ graphql }) => graphql(keyed), null],
])(
  '%s is sent once more after %s where it may run twice, and never otherwise',
  async (_, kind, send, passed) => {
    const world = await start();
    world.shop.fault({ kind });
    const again = { status: 200, admission: expect.stringMatching(/attempts=2, absorbed=0(,|$)/) };
    expect(await send(world)).toMatchObject(passed === null ? again : { ...passed, shouldRetry: 'false' });
    expect(world.shop.log).toHaveLength(passed === null ? 2 : 1);
  },
);

test('a chat is not sent again, and its client may do so: it costs money, but changes nothing', async () => {
  const { chat, model } = await start();
  const answers: [number, string | null][] = [];
  for (const [at, kind] of ([reset, 'hang', '500', '502-html'] as const).entries()) {
    model.fault({ kind });
    const { status, shouldRetry } = await chat(at);
    answers.push([status, shouldRetry]);
  }
  expect(answers).toEqual([502, 504, 500, 502].map((status) => [status, null]));
  expect(nonces(model.log)).toEqual(['0', '1', '2', '3']);
});
