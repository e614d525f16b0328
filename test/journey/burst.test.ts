import { afterEach, beforeEach, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { fastClock } from '../support/fast-clock.ts';
import { watchOrder, type WatchedOrder } from './order.ts';
import { startWorld, tally, type World } from './world.ts';

/** The two figures of the main job, a quarter as large and on faster clocks; `bench/burst.ts` measures them as they are. */
let world: World;
let order: WatchedOrder;
beforeEach(() => {
  order = watchOrder();
});
afterEach(async () => {
  order.stop();
  await world.close();
});

test('a burst of 200 chats on 150 a minute succeeds in order of arrival, without a refusal by the upstream', async () => {
  world = await startWorld({
    clock: fastClock(10),
    model: { models: { 'gpt-4o': { rpm: 150 } } },
    modelLimits: 'requestsPerMinute: 150',
  });
  const { gateway, model } = world;
  const client = new OpenAI({ apiKey: gateway.keys['acme'] ?? '', baseURL: `${gateway.url}/via/openai/v1` });
  const chats = Array.from({ length: 200 }, (_, at) => {
    const messages = [{ role: 'user' as const, content: `Summarise order ${at} in one line.` }];
    return client.chat.completions.create(
      { model: 'gpt-4o', messages },
      { headers: { 'x-nonce': String(at) } },
    );
  });
  expect(await Promise.all(chats)).toHaveLength(200);
  expect(tally(model.log)).toEqual({ 200: 200 });
  expect(order.sent).toHaveLength(200);
  expect(order.sent).toEqual(order.arrived);
  // That is the order of writing; two connections written in one turn are read by the upstream as it likes.
  const makespan = Math.max(...model.log.map(({ t }) => t)) - Math.min(...model.log.map(({ t }) => t));
  // The optimum is 20 s: 150 at once, 50 at 2.5 a second. How close: test/simulation/burst.test.ts, bench/burst.ts.
  expect(makespan).toBeGreaterThan(19_900);
});

test('a burst of 60 commerce calls on 40 + 2/s has one call in flight, in order, without a refusal', async () => {
  world = await startWorld({ clock: fastClock(5), shop: { latency: { minMs: 50, maxMs: 150 } } });
  const { orders, shop } = world;
  const calls: ReturnType<typeof orders>[] = [];
  for (let at = 0; at < 60; at += 1) calls.push(orders(at));
  expect(tally(await Promise.all(calls))).toEqual({ 200: 60 });
  expect(tally(shop.log)).toEqual({ 200: 60 });
  expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
  expect(shop.log.filter(({ status }) => status === 200).map(({ nonce }) => nonce)).toEqual(order.arrived);
  const makespan = Math.max(...shop.log.map(({ t }) => t)) - Math.min(...shop.log.map(({ t }) => t));
  // The optimum is 10 s: the sixtieth call has room when twenty have leaked.
  expect(makespan).toBeGreaterThan(9_900);
});
