import { afterAll, beforeAll, beforeEach, expect, test } from '@jest/globals';
import OpenAI, { toFile } from 'openai';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { streamedChat } from '../sdk/streamed-chat.ts';

const simulator = createLanguageModelSimulator({ latency: { baseMs: 0, perTokenMs: 0, jitter: 0 } });
let client: OpenAI;

beforeAll(async () => {
  const { url } = await simulator.listen();
  client = new OpenAI({ apiKey: 'sk-sim', baseURL: `${url}/v1`, maxRetries: 0 });
});
beforeEach(() => simulator.reset());
afterAll(async () => {
  expect(simulator.state().failures).toEqual([]);
  await simulator.close();
});

const messages = [{ role: 'user' as const, content: 'Where does water go?' }];

test('the OpenAI client gets a chat, whole and streamed with its usage', async () => {
  const whole = await client.chat.completions.create({ model: 'gpt-4o', messages, max_tokens: 4 });
  expect(whole.choices[0]).toMatchObject({
    finish_reason: 'length',
    message: { content: 'water finds its way' },
  });
  expect(await streamedChat(client)).toEqual({ words: 16, tokens: 5 + 3 + 16 });
});

test('the OpenAI client gets a response, whole and from the events that it accumulates', async () => {
  const whole = await client.responses.create({ model: 'gpt-4o', input: 'Where to?' });
  const stream = client.responses.stream({ model: 'gpt-4o', input: 'Where to?' });
  const streamed = await stream.finalResponse();
  expect(streamed.output_text).toBe(whole.output_text);
  expect(streamed.usage?.output_tokens).toBe(16);
});

test('the OpenAI client gets embeddings decoded from base64, pictures from a prompt and from a form, and a list of models', async () => {
  const vectors = await client.embeddings.create({ model: 'text-embedding-3-small', input: ['a', 'b'] });
  expect(vectors.data.map(({ embedding }) => embedding.slice(0, 3))).toEqual([
    [0, 0.125, 0.25],
    [0, 0.125, 0.25],
  ]);
  const made = await client.images.generate({ model: 'gpt-image-1', prompt: 'a gate', n: 2 });
  expect(made.data).toHaveLength(2);
  const picture = await toFile(Buffer.from('png'), 'a.png', { type: 'image/png' });
  await client.images.edit({ model: 'gpt-image-1', prompt: 'open it', image: [picture, picture] });
  expect(simulator.log.at(-1)?.cost).toMatchObject({ ipm: 1, tokens: 1 + 2 * 765 });
  expect((await client.models.list()).data.map(({ id }) => id)).toContain('gpt-4o');
});

test('the OpenAI client gets errors of the class, code and fields that it acts on', async () => {
  simulator.closeFor(60_000);
  const limited = client.chat.completions.create({ model: 'gpt-4o', messages });
  await expect(limited).rejects.toMatchObject({ status: 429, code: 'rate_limit_exceeded', type: 'requests' });
  const unknown = client.chat.completions.create({ model: 'none', messages });
  await expect(unknown).rejects.toMatchObject({ status: 404, code: 'model_not_found' });
  simulator.reset();
  simulator.fault({ kind: 'stream-error', afterChunks: 3 });
  const stream = await client.chat.completions.create({ model: 'gpt-4o', messages, stream: true });
  const read = async (): Promise<void> => {
    for await (const chunk of stream) expect(chunk.choices).toHaveLength(1);
  };
  await expect(read()).rejects.toMatchObject({ code: 'rate_limit_exceeded' });
});

test('the OpenAI client waits as stated before each of two retries, and then succeeds', async () => {
  // A second per request: a machine that is slow to send the first one does not find room for it.
  simulator.configure({ models: { 'gpt-4o': { rpm: 60 } } });
  simulator.consume(60);
  const patient = client.withOptions({ maxRetries: 2 });
  const response = await patient.chat.completions.create({ model: 'gpt-4o', messages });
  expect(response.object).toBe('chat.completion');
  expect(simulator.log.length).toBeGreaterThan(1);
});
