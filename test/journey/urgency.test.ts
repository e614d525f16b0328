import { afterEach, expect, test } from '@jest/globals';
import { highCeilings, startWorld, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

test('urgent calls go before other calls of their workspace, and keep their order among themselves', async () => {
  world = await startWorld({ workspaces: { acme: highCeilings, other: highCeilings } });
  const { orders, shop, settled, occupy } = world;
  await orders('warm');
  const release = await occupy();
  const calls: ReturnType<typeof orders>[] = [];
  const line = ['3a', '3b', '0a', '7a', '0b', '3c'];
  for (const [at, name] of line.entries()) {
    const priority = name.startsWith('3') ? {} : { priority: `u=${name[0] ?? ''}` };
    calls.push(orders(name, { headers: priority }));
    await settled(at + 1, 1);
  }
  await release();
  await Promise.all(calls);
  expect(shop.log.map(({ nonce }) => nonce)).toEqual([
    'warm',
    'occupied',
    '0a',
    '0b',
    '3a',
    '3b',
    '3c',
    '7a',
  ]);
});

test('urgency takes no share of another workspace, and an invalid urgency counts as the default', async () => {
  world = await startWorld({
    model: { models: { 'gpt-4o': { rpm: 600 } } },
    workspaces: { acme: highCeilings, other: highCeilings },
  });
  const { chat, model, settled } = world;
  await chat('warm');
  const body = { error: { message: 'slow down', type: 'requests', code: 'rate_limit_exceeded' } };
  model.fault({ kind: 'answer', status: 429, headers: { 'retry-after-ms': '300' }, body });
  const calls = [chat('first')];
  while (model.log.length < 2) await new Promise((resolve) => setTimeout(resolve, 2));
  const line: [string, string, string][] = [
    ['o1', 'other', 'u=3'],
    ['a1', 'acme', 'u=9'],
    ['a2', 'acme', 'u=0'],
    ['o2', 'other', 'u=x'],
    ['a3', 'acme', 'u=0, i'],
  ];
  for (const [at, [name, workspace, priority]] of line.entries()) {
    calls.push(chat(name, { workspace, headers: { priority } }));
    await settled(at + 2, 0);
  }
  await Promise.all(calls);
  const order = model.log.slice(2).map(({ nonce }) => nonce);
  const ofAcme = order.filter((nonce) => nonce.startsWith('a'));
  expect(ofAcme).toEqual(['a2', 'a3', 'a1']);
  expect(order.filter((nonce) => nonce.startsWith('o'))).toEqual(['o1', 'o2']);
  expect(order.indexOf('o1')).toBeLessThan(order.indexOf('a3'));
});
