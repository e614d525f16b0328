/** The default wait, and client time-outs that shorten it, on a clock that only the test moves. */
import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { startWorld, tally, type World, type WorldOptions } from './world.ts';

let world: World;
let clock: ManualClock;
async function begin(options: WorldOptions): Promise<World> {
  clock = manualClock();
  return (world = await startWorld({ ...options, clock }));
}
afterEach(() => world.close());

const stepMs = 100;

/** Moves the clock while nothing is in flight, until all calls are answered. @throws Error after two minutes of it. */
async function driven<T>(calls: readonly Promise<T>[]): Promise<readonly T[]> {
  let open = calls.length;
  for (const call of calls) void call.finally(() => (open -= 1)).catch(() => {});
  const stopAt = clock.monotonic() + 120_000;
  while (open > 0) {
    if (clock.monotonic() > stopAt) throw new Error(`${open} calls are unanswered after two minutes`);
    await quiet();
    clock.advance(stepMs);
  }
  return Promise.all(calls);
}

/** Resolves when no call is on its way to or from an upstream. */
async function quiet(): Promise<void> {
  const inFlight = () =>
    world.gateway.service.gateway.parts.pressure
      .buckets()
      .reduce((sum, { snapshot }) => sum + snapshot.inFlight, 0);
  do await new Promise((resolve) => setTimeout(resolve, 1));
  while (inFlight() > 0);
}

describe('70 calls at once on a ceiling of 40 a minute', () => {
  test('all succeed by default for a language model', async () => {
    const { chat, model } = await begin({ workspaces: { acme: '    requestsPerMinute: { openai: 40 }\n' } });
    const replies = await driven(Array.from({ length: 70 }, (_, at) => chat(at)));
    expect(tally(replies)).toEqual({ 200: 70 });
    expect(model.log).toHaveLength(70);
    expect(
      model.log.filter(({ arrivedT }) => arrivedT < (model.log[0]?.arrivedT ?? 0) + 60_000),
    ).toHaveLength(40);
  });

  test('all succeed by default for a shop, one at a time', async () => {
    const { orders, shop } = await begin({ workspaces: { acme: '' } });
    const replies = await driven(Array.from({ length: 70 }, (_, at) => orders(at)));
    expect(tally(replies)).toEqual({ 200: 70 });
    expect(tally(shop.log)).toEqual({ 200: 70 });
    expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
  });
});

test('a refusal for a limit of orders, which is not the bucket’s, is passed on at once, and does not hold the shop', async () => {
  const store = { apps: { 'app-sim': ['shpat_sim'] }, devOrderLimit: 1 };
  const { call, orders, shop } = await begin({ shop: { stores: { 'acme.myshopify.com': store } } });
  const json = { order: { line_items: [{ title: 'Cup', price: '1.00', quantity: 1 }] } };
  const create = () => call('/via/shop/admin/api/2026-10/orders.json', { json });
  const replies = await driven([create(), create(), orders(1)]);
  expect(replies.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 201, 429]);
  expect(shop.log.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 201, 429]);
});

describe('a call that has to wait for 60 s', () => {
  /** Sends a second call on a ceiling of one a minute and measures how long it takes on the clock. */
  const second = async (headers: Readonly<Record<string, string>>) => {
    const { chat } = await begin({ workspaces: { acme: '    requestsPerMinute: { openai: 1 }\n' } });
    await driven([chat(1)]);
    const sentAt = clock.monotonic();
    const [reply] = await driven([chat(2, { headers })]);
    return { reply, tookMs: clock.monotonic() - sentAt };
  };
  const shopify = { 'user-agent': 'shopify-api-node/3.15.0' };
  const groq = { 'user-agent': 'Groq/JS 1.6.0' };

  test.each([
    ['of a client that states no time-out', {}],
    ['of a client with a time-out of 66 s', { 'x-stainless-timeout': '66' }],
    ['of a client that raised the time-out it is known for', { ...groq, 'x-stainless-timeout': '120' }],
    ['that asks for more than its client is known for', { ...shopify, prefer: 'wait=90' }],
  ])('%s is served', async (_, headers) => {
    const { reply, tookMs } = await second(headers);
    expect(reply?.status).toBe(200);
    expect(tookMs).toBeGreaterThanOrEqual(60_000 - stepMs);
  });

  test.each([
    ['of a client with a time-out of 64 s', { 'x-stainless-timeout': '64' }],
    ['of a client whose reads time out after 30 s', { 'x-stainless-read-timeout': '30.0' }],
    ['of a client with a deadline of 20 s for the server', { 'x-server-timeout': '20' }],
    ['of a client known to hang up after 60 s', shopify],
    [
      'that asks for more than the stated time-out of its client',
      { 'x-stainless-timeout': '60', prefer: 'wait=90' },
    ],
  ])('%s is refused at once', async (_, headers) => {
    const { reply, tookMs } = await second(headers);
    expect(reply?.json).toMatchObject({ status: 429, code: 'wait_too_long' });
    expect(reply?.headers.get('sluice-admission')).toMatch(/^waited=0,/);
    expect(tookMs).toBeLessThanOrEqual(10 * stepMs);
  });

  test.each([
    [66, 200],
    [64, 429],
  ])(
    'of a client with a time-out of %d s gets %d when its body has taken 20 s of them',
    async (timeout, status) => {
      const { chat, gateway } = await begin({
        workspaces: { acme: '    requestsPerMinute: { openai: 1 }\n' },
      });
      await driven([chat(1)]);
      const sending = request(`${gateway.url}/via/openai/v1/chat/completions`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${gateway.keys['acme'] ?? ''}`,
          'content-type': 'application/json',
          expect: '100-continue',
          'x-stainless-timeout': String(timeout),
        },
      });
      const answered = once(sending, 'response') as Promise<[IncomingMessage]>;
      sending.flushHeaders();
      await once(sending, 'continue');
      clock.advance(20_000);
      sending.end(JSON.stringify({ model: 'gpt-4o', messages: [{ role: 'user', content: 'x' }] }));
      await driven([answered]);
      const [response] = await answered;
      response.resume();
      expect(response.statusCode).toBe(status);
    },
  );
});
