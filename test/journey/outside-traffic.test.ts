import { afterEach, expect, test } from '@jest/globals';
import { closeAll, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(closeAll);

/** Calls on the wire when a `Retry-After` was sent could not know of it; what comes later broke it. */
const onTheWireMs = 25;

test('another client that uses 30 % of a model’s bucket causes no 429 for clients and no call inside a Retry-After', async () => {
  world = await startWorld({
    model: { models: { 'gpt-4o': { rpm: 600 } } },
    modelLimits: 'requestsPerMinute: 600',
  });
  const { chat, model } = world;
  model.consume(480);
  await chat(0);
  model.configure({ outsideTraffic: { perSecond: 3 } });
  const calls = Array.from({ length: 150 }, async (_, at) => {
    await new Promise((resolve) => setTimeout(resolve, at * 5));
    if (at === 75) model.consume(36);
    return chat(at + 1);
  });
  expect(tally(await Promise.all(calls))).toEqual({ 200: 150 });
  expect(model.log.filter(({ sinceRetryAfterMs }) => (sinceRetryAfterMs ?? 0) > onTheWireMs)).toEqual([]);
  // Calls in transit when the other client came are refused; of the 36 calls without room nearly all only wait.
  expect(tally(model.log)[429] ?? 0).toBeLessThanOrEqual(18);
});

test('another client that uses 30 % of a commerce bucket causes no 429 for clients and no call inside a Retry-After', async () => {
  world = await startWorld({
    shop: {
      stores: { 'acme.myshopify.com': { plan: 'plus', apps: { 'app-sim': ['shpat_sim'] } } },
      outsideTraffic: { perSecond: 6, api: 'rest' },
    },
  });
  const { orders, shop } = world;
  await orders(0);
  shop.consume(360);
  const calls = Array.from({ length: 90 }, async (_, at) => {
    if (at === 60) shop.consume(20);
    return orders(at + 1);
  });
  expect(tally(await Promise.all(calls))).toEqual({ 200: 90 });
  expect(shop.log.filter(({ sinceRetryAfterMs }) => sinceRetryAfterMs !== null)).toEqual([]);
  expect(tally(shop.log)[429] ?? 0).toBeLessThanOrEqual(4);
  expect(shop.log[0]?.usedAfter['rest']).toBeLessThanOrEqual(400);
});
