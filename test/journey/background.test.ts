import { afterEach, expect, test } from '@jest/globals';
import { until } from '../support/until.ts';
import { fastClock } from '../support/fast-clock.ts';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const patient = { prefer: 'wait=600' };

test('a background call of a serialized lane waits for the others of its workspace', async () => {
  world = await startWorld();
  const { orders, shop, settled, occupy } = world;
  await orders('warm');
  const release = await occupy();
  const calls: Promise<unknown>[] = [];
  const line: [string, string][] = [
    ['b1', 'u=7'],
    ['f1', 'u=3'],
    ['b2', 'u=7'],
    ['f2', 'u=6'],
  ];
  for (const [at, [name, priority]] of line.entries()) {
    calls.push(orders(name, { headers: { priority } }));
    await settled(at + 1, 1);
  }
  await release();
  await Promise.all(calls);
  expect(shop.log.map(({ nonce }) => nonce).slice(2)).toEqual(['f1', 'f2', 'b1', 'b2']);
});

test('calls of a background workspace let those of others go first', async () => {
  // A place comes free every second, on a clock ten times as fast.
  world = await startWorld({
    clock: fastClock(10),
    model: { models: { 'gpt-4o': { rpm: 60 } } },
    modelLimits: 'requestsPerMinute: 60',
    workspaces: { acme: highCeilings, nightly: `${highCeilings}    class: background\n` },
  });
  const { chat, model, gateway } = world;
  const first = Array.from({ length: 80 }, () => chat('first', { headers: patient }));
  const areWaiting = (): boolean =>
    model.log.length >= 60 &&
    gateway.service.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot.waiting > 9);
  await until(areWaiting);
  const line = ['n1', 'n2', 'a1', 'a2', 'n3', 'a3'].map((name) =>
    chat(name, {
      workspace: name.startsWith('n') ? 'nightly' : 'acme',
      // What urgency it has counts among its own calls only.
      headers: { ...patient, priority: name.startsWith('n') ? 'u=0' : 'u=3' },
    }),
  );
  await Promise.all([...first, ...line]);
  const order = model.log.map(({ nonce }) => nonce).filter((nonce) => nonce !== 'first');
  expect(order).toEqual(['a1', 'a2', 'a3', 'n1', 'n2', 'n3']);
});

test('background calls leave a tenth of the places under a ceiling, and their clients are told of all', async () => {
  world = await startWorld({
    workspaces: { acme: '    requestsPerMinute: { openai: 20, shop: 100 }\n' },
  });
  const { chat } = world;
  const background = { ...patient, prefer: 'wait=1', priority: 'u=7' };
  await chat('warm', { headers: background });
  const replies = await Promise.all(Array.from({ length: 30 }, (_, at) => chat(at, { headers: background })));
  expect(tally(replies)).toEqual({ 200: 17, 429: 13 });
  const sent = replies.filter(({ status }) => status === 200);
  for (const { headers } of sent) expect(headers.get('ratelimit-policy')).toContain('q=20');
  const rest = await Promise.all([
    chat('rest', { headers: { prefer: 'wait=1' } }),
    chat('last', { headers: { prefer: 'wait=1' } }),
  ]);
  expect(tally(rest)).toEqual({ 200: 2 });
  expect((await chat('more', { headers: { prefer: 'wait=1' } })).status).toBe(429);
});

test('under a ceiling that others of the workspace use up, a background call leaves once a minute', async () => {
  world = await startWorld({
    clock: fastClock(60),
    workspaces: { acme: '    requestsPerMinute: { openai: 30, shop: 100 }\n' },
  });
  const { chat, model } = world;
  let isOver = false;
  // So many that some wait at any time, on a slow machine too, where an exchange takes long on this clock.
  const lines = Array.from({ length: 60 }, async () => {
    while (!isOver) await chat('others', { headers: patient });
  });
  await until(() => model.log.length >= 30);
  const background = Array.from({ length: 3 }, () =>
    chat('background', { headers: { ...patient, priority: 'u=7' } }),
  );
  const replies = await Promise.all(background);
  isOver = true;
  const order = model.log.map(({ nonce }) => nonce);
  await Promise.all(lines);
  expect(tally(replies)).toEqual({ 200: 3 });
  const until3 = order.slice(0, order.lastIndexOf('background') + 1);
  // Three minutes of thirty calls: less some that a slow machine did not make, or as many again.
  expect(until3.length).toBeGreaterThan(60);
  expect(until3.length).toBeLessThan(240);
});
