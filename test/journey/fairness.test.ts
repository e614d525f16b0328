import { afterEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { highCeilings, startWorld, tally, type Reply, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const patient = { prefer: 'wait=600' };

/** A full bucket for which many calls of workspace `busy` wait: 1 call a second, on a clock ten times as fast. */
async function busyWorld(
  workspaces: Record<string, string>,
): Promise<{ leave(): Promise<void>; sent(): string[] }> {
  world = await startWorld({
    clock: fastClock(10),
    model: { models: { 'gpt-4o': { rpm: 60 } } },
    modelLimits: 'requestsPerMinute: 60',
    workspaces: { busy: highCeilings, ...workspaces },
  });
  const { chat, model, settled } = world;
  await chat('busy', { workspace: 'busy' });
  const leaving = new AbortController();
  const line = Array.from({ length: 100 }, () =>
    chat('busy', { workspace: 'busy', headers: patient, signal: leaving.signal }),
  );
  const ended = Promise.allSettled(line);
  while (model.log.length < 59) await new Promise((resolve) => setTimeout(resolve, 5));
  const from = model.log.length;
  return {
    sent: () => model.log.slice(from).map(({ nonce }) => nonce),
    async leave() {
      leaving.abort();
      await ended;
      await settled(0, 0);
    },
  };
}

test('five calls do not wait behind a hundred calls of another workspace', async () => {
  const { sent, leave } = await busyWorld({ small: highCeilings });
  const few = Array.from({ length: 5 }, () => world.chat('small', { workspace: 'small', headers: patient }));
  const replies = await Promise.all(few);
  expect(replies.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
  const order = sent();
  // The workspaces alternate: ten calls, and those that were sent while the five arrived. Some forty waited when they came.
  expect(order.lastIndexOf('small')).toBeLessThan(30);
  await leave();
});

test('the share of a workspace follows its weight', async () => {
  const { sent, leave } = await busyWorld({ heavy: `${highCeilings}    weight: 9\n` });
  const many = Array.from({ length: 18 }, () =>
    world.chat('heavy', { workspace: 'heavy', headers: patient }),
  );
  await Promise.all(many);
  const order = sent();
  const shared = order.slice(order.indexOf('heavy'), order.lastIndexOf('heavy') + 1);
  const others = shared.filter((nonce) => nonce === 'busy').length;
  // The other workspace sends two calls beside eighteen; with equal shares it would send eighteen.
  expect(others).toBeGreaterThanOrEqual(1);
  expect(others).toBeLessThanOrEqual(9);
  await leave();
});

test('calls of nearly the whole limit leave half of the tokens to small calls', async () => {
  world = await startWorld({
    clock: fastClock(30),
    model: { models: { 'gpt-4o': { rpm: 600, tpm: 6_000 } } },
    modelLimits: 'requestsPerMinute: 600, tokensPerMinute: 6000',
    workspaces: { large: highCeilings, small: highCeilings },
  });
  const { call, model, settled } = world;
  const chat = (workspace: string, tokens: number, signal?: AbortSignal): Promise<Reply> =>
    call('/via/openai/v1/chat/completions', {
      workspace,
      json: { model: 'gpt-4o', max_tokens: tokens, messages: [{ role: 'user', content: 'how are you?' }] },
      headers: { ...patient, 'x-nonce': workspace },
      ...(signal === undefined ? {} : { signal }),
    });
  await chat('large', 5_000);
  const leaving = new AbortController();
  const line = Array.from({ length: 6 }, () => chat('large', 5_000, leaving.signal));
  const ended = Promise.allSettled(line);
  await settled(6, 0);
  const replies = await Promise.all(Array.from({ length: 30 }, () => chat('small', 150)));
  expect(tally(replies)).toEqual({ 200: 30 });
  const order = model.log.map(({ nonce }) => nonce);
  const meanwhile = order.slice(order.indexOf('small'), order.lastIndexOf('small') + 1);
  // Both workspaces use about 5,000 tokens; alternating call by call would have let all six large calls go first.
  expect(meanwhile.filter((nonce) => nonce === 'large').length).toBeLessThanOrEqual(2);
  leaving.abort();
  await ended;
  await settled(0, 0);
});

test('workspaces on one commerce credential alternate, with one call in flight each', async () => {
  world = await startWorld({
    // The upstream is slow enough that all calls have arrived before many are served.
    shop: { latency: { minMs: 30, maxMs: 40 } },
    workspaces: { one: highCeilings, two: highCeilings, three: highCeilings },
  });
  const { orders, shop } = world;
  await orders('one', { workspace: 'one' });
  const names = ['one', 'two', 'three'];
  const calls = names.flatMap((workspace) =>
    Array.from({ length: 12 }, () => orders(workspace, { workspace })),
  );
  expect((await Promise.all(calls)).every(({ status }) => status === 200)).toBe(true);
  const order = shop.log.slice(1).map(({ nonce }) => nonce);
  // In no part of the order is a workspace far ahead.
  for (let at = 6; at <= 24; at += 6) {
    const counts = names.map((name) => order.slice(0, at).filter((nonce) => nonce === name).length);
    expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(4);
  }
  expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBeLessThanOrEqual(3);
  expect(shop.log.filter(({ status }) => status === 429)).toEqual([]);
});
