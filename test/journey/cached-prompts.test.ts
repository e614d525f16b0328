/** Agents whose large prompts lie in the cache of the provider run side by side: what is not counted is not reserved. */
import { afterEach, expect, test } from '@jest/globals';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

test('calls with cached prompts wait only for the tokens that the upstream counts', async () => {
  world = await startWorld({
    model: {
      dialect: 'anthropic',
      models: { 'claude-sonnet-5': { rpm: 1_000, itpm: 50_000, otpm: 100_000 } },
    },
    workspaces: {
      acme: `${highCeilings}    credentials: { openai: { header: x-api-key, value: sk-sim } }\n`,
    },
  });
  const system = (agent: number) => [
    { type: 'text', text: `${agent}${'x'.repeat(80_000)}`, cache_control: { type: 'ephemeral' } },
  ];
  const ask = (agent: number, n: number) =>
    world.call('/via/openai/v1/messages', {
      json: {
        model: 'claude-sonnet-5',
        max_tokens: 4_000,
        system: system(agent),
        messages: [{ role: 'user', content: `ask ${n} ${'y'.repeat(400)}` }],
      },
      headers: { prefer: 'wait=5' },
    });
  // The first turn of an agent fills the cache: 20,000 tokens each are counted, and both fit.
  const first = await Promise.all([ask(0, 0), ask(1, 0)]);
  const later = await Promise.all(Array.from({ length: 20 }, (_, n) => ask(n % 2, n + 1)));
  expect(tally([...first, ...later])).toEqual({ 200: 22 });
  expect(tally(world.model.log)[429] ?? 0).toBeLessThanOrEqual(1);
  const [bucket] = world.gateway.service.gateway.parts.pressure.buckets();
  const input = bucket?.snapshot.meters.find(({ meter }) => meter === 'input_tokens');
  expect(input?.limit).toBe(50_000);
  expect(input?.level).toBeLessThanOrEqual(60_000);
  expect(bucket?.snapshot.meters.map(({ meter }) => meter)).toContain('output_tokens');
});
