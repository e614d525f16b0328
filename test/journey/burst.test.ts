/** The main job, a quarter as large and on faster clocks; `bench/burst.ts` measures it as it is. */
import { afterEach, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { fastClock } from '../support/fast-clock.ts';
import { makespan } from '../support/redis-fleet.ts';
import { closeAll, many, startWorld, tally } from './world.ts';

afterEach(closeAll);

test('a burst of 200 chats on 150 a minute succeeds without a refusal by the upstream', async () => {
  const { gateway, model } = await startWorld({
    clock: fastClock(10),
    model: { models: { 'gpt-4o': { rpm: 150 } } },
    modelLimits: 'requestsPerMinute: 150',
  });
  const client = new OpenAI({ apiKey: gateway.keys['acme'] ?? '', baseURL: `${gateway.url}/via/openai/v1` });
  const chats = many(200, (at) => {
    const messages = [{ role: 'user' as const, content: `Summarise order ${at} in one line.` }];
    return client.chat.completions.create({ model: 'gpt-4o', messages }, { headers: { 'x-nonce': `${at}` } });
  });
  expect(await Promise.all(chats)).toHaveLength(200);
  expect(tally(model.log)).toEqual({ 200: 200 });
  // The optimum is 20 s: 150 at once, 50 at 2.5 a second. How close: test/simulation/metering/bursts.test.ts, bench/burst.ts.
  expect(makespan(model.log)).toBeGreaterThan(19_900);
});
