import { afterAll, beforeAll, beforeEach, expect, test } from '@jest/globals';
import Anthropic from '@anthropic-ai/sdk';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';

const simulator = createLanguageModelSimulator({
  dialect: 'anthropic',
  latency: { baseMs: 0, perTokenMs: 0, jitter: 0 },
});
let client: Anthropic;

beforeAll(async () => {
  const { url } = await simulator.listen();
  client = new Anthropic({ apiKey: 'sk-sim', baseURL: url, maxRetries: 0 });
});
beforeEach(() => simulator.reset());
afterAll(async () => {
  expect(simulator.state().failures).toEqual([]);
  await simulator.close();
});

const call = {
  model: 'claude-sonnet-5',
  max_tokens: 4,
  messages: [{ role: 'user' as const, content: 'Where does water go?' }],
};

test('the Anthropic client gets messages of the simulator, whole and streamed', async () => {
  const whole = await client.messages.create(call);
  expect(whole).toMatchObject({ stop_reason: 'max_tokens', content: [{ text: 'water finds its way' }] });
  const streamed = await client.messages.stream(call).finalMessage();
  expect(streamed.content).toEqual(whole.content);
  expect(streamed.usage.output_tokens).toBe(4);
});

test('the Anthropic client recognises a refusal, an overload and an error inside a stream of the simulator', async () => {
  simulator.consume(50, { model: 'claude-sonnet-5' });
  await expect(client.messages.create(call)).rejects.toBeInstanceOf(Anthropic.RateLimitError);
  simulator.reset();
  simulator.configure({ overload: 'server_is_overloaded' });
  await expect(client.messages.create(call)).rejects.toMatchObject({ status: 529 });
  simulator.configure({ overload: null });
  simulator.fault({ kind: 'stream-error', afterChunks: 3 });
  await expect(client.messages.stream(call).finalMessage()).rejects.toThrow('rate_limit_error');
});
