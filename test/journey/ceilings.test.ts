import { afterEach, expect, test } from '@jest/globals';
import type { LogEntry } from '../../simulators/log.ts';
import { fastClock } from '../support/fast-clock.ts';
import { startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const speed = 10;
/**
 * Our sockets are as slow as ever while time runs faster: 30 rounds of the event loop between sending and arriving are three
 * seconds here. The ceiling itself is held to the millisecond where time is an argument (`test/limiter/`).
 */
const slackMs = 300 * speed;

/** Most calls that arrived in any window of a minute, however one lays it. */
function busiestMinute(log: readonly LogEntry[]): number {
  const times = log.map(({ arrivedT }) => arrivedT).toSorted((one, other) => one - other);
  let most = 0;
  for (const [at, start] of times.entries()) {
    const end = times.findIndex((time) => time >= start + 60_000 - slackMs);
    most = Math.max(most, (end === -1 ? times.length : end) - at);
  }
  return most;
}

const patient = { prefer: 'wait=600' };

test('a ceiling holds in every window of 60 s, for each workspace and upstream separately', async () => {
  world = await startWorld({
    clock: fastClock(speed),
    workspaces: {
      acme: '    requestsPerMinute: { openai: 12, shop: 9 }\n',
      beta: '    requestsPerMinute: { openai: 7, shop: 9 }\n',
    },
  });
  const { chat, orders, call, model, shop, modelUrl } = world;
  // Spread at first, so that the windows do not begin together.
  const calls = Array.from({ length: 24 }, async (_, at) => {
    await new Promise((resolve) => setTimeout(resolve, at < 12 ? at * 100 : 1200));
    const target = encodeURIComponent(`${modelUrl}/v1/chat/completions`);
    const json = { model: 'gpt-4o', messages: [{ role: 'user', content: 'x' }], user: 'acme' };
    return Promise.all([
      at % 2 === 0
        ? chat('acme', { headers: patient })
        : call(`/proxy?target=${target}`, { json, headers: patient }),
      ...(at < 14 ? [chat('beta', { workspace: 'beta', headers: patient })] : []),
      ...(at < 18 ? [orders('shop', { headers: patient })] : []),
    ]);
  });
  expect(tally((await Promise.all(calls)).flat())).toEqual({ 200: 24 + 14 + 18 });
  const of = (nonce: string): readonly LogEntry[] => model.log.filter((entry) => entry.nonce === nonce);
  expect(busiestMinute(of('acme'))).toBe(12);
  expect(busiestMinute(of('beta'))).toBe(7);
  expect(busiestMinute(shop.log)).toBe(9);
});

test('a ceiling is stated in every response, and is not changed by what the upstream reports', async () => {
  world = await startWorld({
    model: { models: { 'gpt-4o': { rpm: 60 } } },
    workspaces: { acme: '    requestsPerMinute: { openai: 5 }\n' },
  });
  const replies = [await world.chat(1), await world.chat(2), await world.chat(3)];
  expect(replies.map(({ headers }) => headers.get('ratelimit-policy'))).toEqual(
    Array.from({ length: 3 }, () => '"workspace";q=5;w=60'),
  );
  expect(replies.map(({ headers }) => /r=(\d+)/.exec(headers.get('ratelimit') ?? '')?.[1])).toEqual([
    '4',
    '3',
    '2',
  ]);
});

test('a ceiling counts a throttled attempt, too, because the attempt reached the upstream', async () => {
  world = await startWorld({ workspaces: { acme: '    requestsPerMinute: { openai: 3 }\n' } });
  const { chat, model } = world;
  const body = { error: { message: 'slow down', type: 'requests', code: 'rate_limit_exceeded' } };
  model.fault({ kind: 'answer', status: 429, headers: { 'retry-after-ms': '20' }, body });
  expect((await chat(1)).status).toBe(200);
  expect((await chat(2)).status).toBe(200);
  expect((await chat(3, { headers: { prefer: 'wait=45' } })).json).toMatchObject({ code: 'wait_too_long' });
  expect(model.log).toHaveLength(3);
});
