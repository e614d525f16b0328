import { createOpenAI } from '@ai-sdk/openai';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { embed, generateText, streamText } from 'ai';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';

const simulator = createLanguageModelSimulator({ latency: { baseMs: 0, perTokenMs: 0, jitter: 0 } });
let openai: ReturnType<typeof createOpenAI>;

beforeAll(async () => {
  const { url } = await simulator.listen();
  openai = createOpenAI({ apiKey: 'sk-sim', baseURL: `${url}/v1` });
});
afterAll(async () => {
  expect(simulator.state().failures).toEqual([]);
  await simulator.close();
});

test.each(['chat', 'responses'] as const)(
  'the SDK gets the same text by %s, whole and streamed',
  async (api) => {
    const model = openai[api]('gpt-4o');
    const whole = await generateText({ model, prompt: 'Where to?', maxRetries: 0 });
    expect(whole.text.split(' ')).toHaveLength(16);
    expect(whole.usage.outputTokens).toBe(16);
    const streamed = streamText({ model, prompt: 'Where to?', maxRetries: 0 });
    expect(await streamed.text).toBe(whole.text);
  },
);

test('the SDK gets an embedding', async () => {
  const model = openai.textEmbeddingModel('text-embedding-3-small');
  expect((await embed({ model, value: 'water', maxRetries: 0 })).embedding).toHaveLength(16);
});

test('the SDK reports a refusal as an error with status 429', async () => {
  // A minute per request: a machine that is slow to send this one does not find room for it.
  simulator.configure({ models: { 'gpt-4o': { rpm: 1 } } });
  simulator.consume(1);
  const refused = generateText({ model: openai.chat('gpt-4o'), prompt: 'a', maxRetries: 0 });
  await expect(refused).rejects.toMatchObject({ statusCode: 429 });
});
