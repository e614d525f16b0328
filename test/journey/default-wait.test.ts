/** The default wait, on a clock that only the test moves. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { startWorld, tally, type World, type WorldOptions } from './world.ts';

let world: World;
let clock: ManualClock;
const begin = async (options: WorldOptions): Promise<World> => {
  clock = manualClock();
  return (world = await startWorld({ ...options, clock }));
};
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
    world.gateway.service.gateway.buckets().reduce((sum, { snapshot }) => sum + snapshot.inFlight, 0);
  do await new Promise((resolve) => setTimeout(resolve, 1));
  while (inFlight() > 0);
}

describe('70 calls at once on a ceiling of 40 a minute', () => {
  test('of a language model all succeed by default', async () => {
    const { chat, model } = await begin({ workspaces: { acme: '    requestsPerMinute: { openai: 40 }\n' } });
    const replies = await driven(Array.from({ length: 70 }, (_, at) => chat(at)));
    expect(tally(replies)).toEqual({ 200: 70 });
    expect(model.log).toHaveLength(70);
    expect(
      model.log.filter(({ arrivedT }) => arrivedT < (model.log[0]?.arrivedT ?? 0) + 60_000),
    ).toHaveLength(40);
  }, 60_000);

  test('of a shop with everything at its default all succeed, one at a time', async () => {
    const { orders, shop } = await begin({ workspaces: { acme: '' } });
    const replies = await driven(Array.from({ length: 70 }, (_, at) => orders(at)));
    expect(tally(replies)).toEqual({ 200: 70 });
    expect(tally(shop.log)).toEqual({ 200: 70 });
    expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
  }, 60_000);
});

test('an order limit of a minute, which is not the bucket’s, is kept from a client that waits as long', async () => {
  const store = { apps: { 'app-sim': ['shpat_sim'] }, devOrderLimit: 1 };
  const { call, shop } = await begin({ shop: { stores: { 'acme.myshopify.com': store } } });
  const json = { order: { line_items: [{ title: 'Cup', price: '1.00', quantity: 1 }] } };
  const create = () => call('/via/shop/admin/api/2026-10/orders.json', { json });
  expect(tally(await driven([create(), create()]))).toEqual({ 201: 2 });
  expect(shop.log.map(({ status }) => status)).toEqual([201, 429, 201]);
});
