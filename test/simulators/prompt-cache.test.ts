import { expect, test } from '@jest/globals';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { manualClock } from '../support/manual-clock.ts';

test('a marked prompt is cached for five minutes from its last use, and is not counted when it is read', async () => {
  const clock = manualClock();
  const latency = { baseMs: 0, perTokenMs: 0, jitter: 0 };
  const simulator = createLanguageModelSimulator({ dialect: 'anthropic', clock, latency });
  const { url } = await simulator.listen();
  const system = [{ type: 'text', text: 'x'.repeat(40_000), cache_control: { type: 'ephemeral' } }];
  const ask = async (text: string): Promise<unknown> => {
    const response = await fetch(`${url}/v1/messages`, {
      method: 'POST',
      headers: { 'x-api-key': 'sk-sim', 'content-type': 'application/json' },
      body: JSON.stringify({
        model: 'claude-sonnet-5',
        max_tokens: 4,
        system,
        messages: [{ role: 'user', content: text }],
      }),
    });
    const { usage } = (await response.json()) as { usage: Record<string, number> };
    const left = response.headers.get('anthropic-ratelimit-input-tokens-remaining');
    return { ...usage, left: Number(left) };
  };
  const written = { cache_creation_input_tokens: 10_000, cache_read_input_tokens: 0 };
  const read = { cache_creation_input_tokens: 0, cache_read_input_tokens: 10_000 };
  expect(await ask('a'.repeat(400))).toMatchObject({
    input_tokens: 103,
    ...written,
    output_tokens: 4,
    left: 20_000,
  });
  expect(await ask('b'.repeat(4_000))).toMatchObject({ input_tokens: 1_003, ...read, left: 19_000 });
  clock.advance(299_000);
  expect(await ask('c')).toMatchObject(read);
  clock.advance(300_000);
  expect(await ask('d')).toMatchObject(written);
  simulator.configure({ promptCacheSeconds: 0 });
  expect(await ask('e')).toMatchObject(written);
  await simulator.close();
});
