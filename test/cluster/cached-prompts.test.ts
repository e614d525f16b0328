/** Agents with large cached prompts whose turns come to three replicas in rotation: none waits for tokens that are not counted. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { serviceOf } from '../support/gateway.ts';
import { fleetConfig } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
const open: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(() => redis.stop());

test('five agents take their turns side by side over three replicas, and each is refused at most once', async () => {
  const model = createLanguageModelSimulator({
    dialect: 'anthropic',
    latency: { baseMs: 5, perTokenMs: 0, jitter: 0 },
    models: { 'claude-sonnet-5': { rpm: 10_000, itpm: 120_000, otpm: 1_000_000 } },
  });
  const { url } = await model.listen();
  open.push(() => model.close());
  const config = fleetConfig({
    redis: `url: "redis://127.0.0.1:${redis.port}", commandTimeoutMs: 2000`,
    modelUrl: url,
    workspace: '    requestsPerMinute: { openai: 100000 }\n    requestsPerDay: { openai: 1000000 }',
  });
  const services: Awaited<ReturnType<typeof serviceOf>>[] = [];
  for (let n = 0; n < 3; n += 1) {
    const service = await serviceOf(config.yaml());
    open.push(() => service.close());
    services.push(service);
  }
  const ask = async (replica: number, agent: number, n: number): Promise<number> => {
    const port = services[replica]?.dataAddress.port;
    const response = await fetch(`http://127.0.0.1:${port}/via/openai/v1/messages`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${config.keys['acme']}`,
        'content-type': 'application/json',
        prefer: 'wait=20',
      },
      body: JSON.stringify({
        model: 'claude-sonnet-5',
        max_tokens: 4_000,
        system: [
          { type: 'text', text: `${agent}${'x'.repeat(80_000)}`, cache_control: { type: 'ephemeral' } },
        ],
        messages: [{ role: 'user', content: `ask ${n} ${'y'.repeat(80)}` }],
      }),
    });
    await response.arrayBuffer();
    return response.status;
  };
  const agents = [0, 1, 2, 3, 4];
  // 20,000 tokens of each agent are written into the cache by its first turn; the nine behind it count 25 each. Each replica learns by itself, and takes a
  // marked prompt that it has not seen to lie in the cache.
  const first = await Promise.all(agents.map((agent) => ask(2, agent, 0)));
  const later = await Promise.all(
    agents.map(async (agent) => {
      const seen: number[] = [];
      for (let n = 1; n < 10; n += 1) seen.push(await ask((agent + n) % 3, agent, n));
      return seen;
    }),
  );
  expect([...first, ...later.flat()]).toEqual(Array(50).fill(200));
  expect(model.log.filter(({ status }) => status === 429).length).toBeLessThanOrEqual(5);
});
