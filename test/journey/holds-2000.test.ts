import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World;
beforeAll(async () => {
  world = await startWorld({
    model: { models: { 'gpt-4o': { rpm: 100_000 } } },
    modelLimits: 'requestsPerMinute: 100000, maxQueued: 3000',
    workspaces: { acme: highCeilings },
  });
});
afterAll(() => world.close());

test('two thousand waiting calls use little memory and all leave in order when the bucket opens', async () => {
  const { chat, model, settled, gateway } = world;
  await chat(0);
  const body = { error: { message: 'slow down', type: 'requests', code: 'rate_limit_exceeded' } };
  model.fault({ kind: 'answer', status: 429, headers: { 'retry-after': '15' }, body });
  const before = process.memoryUsage().rss;
  const first = chat(1);
  while (model.log.length < 2) await new Promise((resolve) => setTimeout(resolve, 2));
  const calls = Array.from({ length: 1999 }, () => chat(2));
  await settled(2000, 0);
  // Clients and sockets of both sides are in this process too.
  expect((process.memoryUsage().rss - before) / 2000).toBeLessThan(250_000);
  expect((await fetch(`${gateway.adminUrl}/livez`)).status).toBe(200);
  const metrics = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
  expect(metrics).toMatch(/^sluice_queue_depth\{[^}]*upstream="openai"[^}]*\} 2000$/m);
  const refused = await chat(3, { headers: { prefer: 'wait=1' } });
  expect(refused.json).toMatchObject({ code: 'wait_too_long' });
  expect(model.log).toHaveLength(2);
  expect(tally(await Promise.all([first, ...calls]))).toEqual({ 200: 2000 });
  expect(model.log[2]?.nonce).toBe('1');
  expect(model.log.filter(({ insideRetryAfter }) => insideRetryAfter)).toEqual([]);
  expect(tally(model.log)).toEqual({ 200: 2001, 429: 1 });
  await settled(0, 0);
});
