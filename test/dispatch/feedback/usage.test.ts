/** The tokens that a response says were used, in the words of each provider. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { usageWatch } from '../../../src/dispatch/feedback/language-model.policy.ts';

const usageOf = (...texts: readonly unknown[]) => {
  const watch = usageWatch();
  const taught = texts.map((text) => watch(typeof text === 'string' ? text : JSON.stringify(text), 0));
  return taught.at(-1)?.usage ?? null;
};

type Count = number | null;
/** Tokens of the prompt, of it those that a cache kept, and what counts. */
const used = (...[prompt, kept, input, output, total]: [Count, number, Count, Count, number]) => {
  return { prompt, kept, input, output, total };
};
/** The words of OpenAI and of all that speak like it. */
const openAi = (prompt: number, completion: number, more = {}) => ({
  usage: { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion, ...more },
});
const ofInput = (input: number, output: number, more = {}) => ({
  usage: { input_tokens: input, output_tokens: output, ...more },
});
const cached = (tokens: number) => ({ prompt_tokens_details: { cached_tokens: tokens } });
const gemini = (prompt: number, candidates: number, more = {}) => ({
  usageMetadata: { promptTokenCount: prompt, candidatesTokenCount: candidates, ...more },
});
const kept = (read: number, written: number) => ({
  cacheReadInputTokens: read,
  cacheWriteInputTokens: written,
});
const filtered = { prompt_filter_results: [{ prompt_index: 0 }] };

const ollama = '{"done":false}\n{"done":true,"prompt_eval_count":40,"eval_count":60}\n';
const keptOfInput = { input_tokens_details: { cached_tokens: 30 }, total_tokens: 100 };
const groq = { ...openAi(4_641, 1_817, cached(4_608)), x_groq: { id: 'req_1' } };
const written = { cache_creation_input_tokens: 1_000, cache_read_input_tokens: 148_000 };
const thinking = { cachedContentTokenCount: 30, thoughtsTokenCount: 5, toolUsePromptTokenCount: 2 };
const modality = { totalTokenCount: 47, promptTokensDetails: [{ modality: 'TEXT', tokenCount: 40 }] };
const bedrock = { usage: { inputTokens: 10, outputTokens: 4, totalTokens: 14, ...kept(90, 6) } };

describe('the usage reported by a response', () => {
  test.each<[string, unknown, ReturnType<typeof used>]>([
    ['OpenAI: cached tokens count', openAi(100, 20, cached(64)), used(100, 0, 100, 20, 120)],
    ['Cohere', { meta: { billed_units: { input_tokens: 40, output_tokens: 60 } } }, used(40, 0, 40, 60, 100)],
    ['Ollama', ollama, used(40, 0, 40, 60, 100)],
    ['Responses: cached tokens count', ofInput(90, 10, keptOfInput), used(90, 0, 90, 10, 100)],
    ['embeddings: a prompt alone', { usage: { prompt_tokens: 8, total_tokens: 8 } }, used(8, 0, 8, null, 8)],
    ['Mistral', { object: 'chat.completion', ...openAi(16, 34) }, used(16, 0, 16, 34, 50)],
    ['Azure', { ...filtered, ...openAi(5, 3) }, used(5, 0, 5, 3, 8)],
    ['Groq: cached tokens are free', groq, used(4_641, 4_608, 33, 1_817, 1_850)],
    ['Anthropic: cache writes count', ofInput(50, 300, written), used(149_050, 149_000, 1_050, 300, 1_350)],
    ['Anthropic without a cache', ofInput(5, 6), used(5, 0, 5, 6, 11)],
    ['Gemini: input alone counts, thoughts are output', gemini(40, 7, thinking), used(42, 0, 42, 12, 42)],
    ['Gemini on Vertex AI, by modality', gemini(40, 7, modality), used(40, 0, 40, 7, 40)],
    ['Gemini that tells a sum', { usageMetadata: { totalTokenCount: 9 } }, used(null, 0, null, null, 9)],
    ['Bedrock', bedrock, used(106, 96, 16, 4, 20)],
    ['images', ofInput(12, 4_160, { total_tokens: 4_172 }), used(12, 0, 12, 4_160, 4_172)],
  ])('is read for %s: %j', (_, body, expected) => expect(usageOf(body)).toEqual(expected));

  test('is collected from the parts of an Anthropic stream, and the last output replaces the one before', () => {
    const counts = ofInput(3, 1, { cache_creation_input_tokens: 0, cache_read_input_tokens: 70 });
    const start = { type: 'message_start', message: counts };
    const delta = (output: number) => ({ usage: { input_tokens: null, output_tokens: output } });
    expect(usageOf(start, delta(9), delta(15))).toEqual(used(73, 70, 3, 15, 18));
    expect(usageOf(start)).toMatchObject({ input: 3, output: 1 });
  });

  test('is read from the last part of a stream of Bedrock', () => {
    const part = (document: object) =>
      `{"bytes":"${Buffer.from(JSON.stringify(document)).toString('base64')}","p":"abc"}`;
    const metrics = { inputTokenCount: 14, outputTokenCount: 36, invocationLatency: 9 };
    const text = `${part({ outputText: 'x' })}\u0000${part({ 'amazon-bedrock-invocationMetrics': metrics })}`;
    expect(usageOf(text)).toEqual(used(14, 0, 14, 36, 50));
  });

  test('is found at the end of a body that was cut, and anywhere in a body that is whole', () => {
    const usage = { prompt_tokens: 8, total_tokens: 8 };
    const data = 'x'.repeat(20_000);
    expect(usageOf(JSON.stringify({ data, usage }).slice(-8_000))?.total).toBe(8);
    expect(usageOf({ usage, data })?.total).toBe(8);
  });

  test.each([
    ['what the model wrote', { choices: [{ message: { content: '"usage":{"total_tokens":99}' } }] }],
    ['an empty one of a running stream', { choices: [], usage: null }],
    ['a transcription that counts seconds', { text: 'hi', usage: { type: 'duration', seconds: 9 } }],
    ['negative counts', { usage: { prompt_tokens: -4, completion_tokens: 3, total_tokens: -1 } }],
    ['text for counts', { usage: { prompt_tokens: '4', total_tokens: '8' } }],
    ['a count that nobody can have used', { usage: { prompt_tokens: 1, total_tokens: 1e300 } }],
  ])('is not read from %s', (_, body) => expect(usageOf(body)?.total ?? null).toBeNull());

  test('never throws and is a possible count, whatever the body says', () => {
    const names = `prompt_tokens completion_tokens total_tokens input_tokens output_tokens cache_read_input_tokens
      cache_creation_input_tokens prompt_tokens_details promptTokenCount inputTokens`;
    const value = fc.oneof(fc.double(), fc.integer(), fc.string(), fc.constant(null), fc.constant({}));
    const members = fc.dictionary(fc.constantFrom(...names.split(/\s+/)), value);
    fc.assert(
      fc.property(members, fc.nat(200), fc.boolean(), (usage, cut, isGroq) => {
        const text = JSON.stringify({ usage, ...(isGroq ? { x_groq: {} } : {}) });
        for (const reported of [usageOf(text), usageOf(text.slice(cut)), usageOf(text.slice(0, cut))])
          for (const tokens of Object.values(reported ?? {}))
            expect(tokens === null || (Number.isFinite(tokens) && Number(tokens) >= 0)).toBe(true);
      }),
    );
  });
});
