import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  bedrockPart,
  noUsage,
  tokenUsage,
  usageInFields,
  withUsageIn,
} from '../../../src/dispatch/feedback/usage.policy.ts';

const usageOf = (...texts: readonly unknown[]) =>
  tokenUsage(
    texts.reduce<ReturnType<typeof withUsageIn>>(
      (known, text) => withUsageIn(known, typeof text === 'string' ? text : JSON.stringify(text)),
      noUsage,
    ),
  );

describe('the usage reported by a response', () => {
  test.each([
    [
      'OpenAI chat: cached tokens count',
      {
        choices: [],
        usage: {
          prompt_tokens: 100,
          completion_tokens: 20,
          total_tokens: 120,
          prompt_tokens_details: { cached_tokens: 64 },
          completion_tokens_details: { reasoning_tokens: 8 },
        },
      },
      { prompt: 100, kept: 0, input: 100, output: 20, total: 120 },
    ],
    [
      'Cohere',
      { text: 'x', meta: { billed_units: { input_tokens: 40, output_tokens: 60 } } },
      { prompt: 40, kept: 0, input: 40, output: 60, total: 100 },
    ],
    [
      'Ollama',
      '{"done":false}\n{"model":"m","done":true,"prompt_eval_count":40,"eval_count":60}\n',
      { prompt: 40, kept: 0, input: 40, output: 60, total: 100 },
    ],
    [
      'Responses: cached tokens count',
      {
        usage: {
          input_tokens: 90,
          input_tokens_details: { cached_tokens: 30 },
          output_tokens: 10,
          total_tokens: 100,
        },
      },
      { prompt: 90, kept: 0, input: 90, output: 10, total: 100 },
    ],
    [
      'embeddings, Mistral: a prompt alone',
      { data: [], usage: { prompt_tokens: 8, total_tokens: 8 } },
      { prompt: 8, kept: 0, input: 8, output: null, total: 8 },
    ],
    [
      'Mistral chat',
      { object: 'chat.completion', usage: { prompt_tokens: 16, completion_tokens: 34, total_tokens: 50 } },
      { prompt: 16, kept: 0, input: 16, output: 34, total: 50 },
    ],
    [
      'Azure: content filters between the members',
      {
        prompt_filter_results: [{ prompt_index: 0 }],
        usage: { completion_tokens: 3, prompt_tokens: 5, total_tokens: 8 },
      },
      { prompt: 5, kept: 0, input: 5, output: 3, total: 8 },
    ],
    [
      'Groq: cached tokens are free',
      {
        usage: {
          prompt_tokens: 4641,
          prompt_tokens_details: { cached_tokens: 4608 },
          completion_tokens: 1817,
          total_tokens: 6458,
        },
        x_groq: { id: 'req_1' },
      },
      { prompt: 4641, kept: 4608, input: 33, output: 1817, total: 1850 },
    ],
    [
      'Anthropic: cache writes count, cache reads do not',
      {
        usage: {
          input_tokens: 50,
          cache_creation_input_tokens: 1_000,
          cache_read_input_tokens: 148_000,
          output_tokens: 300,
        },
      },
      { prompt: 149_050, kept: 149_000, input: 1_050, output: 300, total: 1_350 },
    ],
    [
      'Anthropic without a cache',
      { usage: { input_tokens: 5, output_tokens: 6 } },
      { prompt: 5, kept: 0, input: 5, output: 6, total: 11 },
    ],
    [
      'Gemini: input alone counts, thoughts are output',
      {
        candidates: [],
        usageMetadata: {
          promptTokenCount: 40,
          cachedContentTokenCount: 30,
          candidatesTokenCount: 7,
          thoughtsTokenCount: 5,
          toolUsePromptTokenCount: 2,
          totalTokenCount: 54,
        },
      },
      { prompt: 42, kept: 0, input: 42, output: 12, total: 42 },
    ],
    [
      'Gemini on Vertex AI, with details by modality',
      {
        usageMetadata: {
          promptTokenCount: 40,
          candidatesTokenCount: 7,
          totalTokenCount: 47,
          trafficType: 'ON_DEMAND',
          promptTokensDetails: [{ modality: 'TEXT', tokenCount: 40 }],
          candidatesTokensDetails: [{ modality: 'TEXT', tokenCount: 7 }],
        },
      },
      { prompt: 40, kept: 0, input: 40, output: 7, total: 40 },
    ],
    [
      'embeddings of Vertex AI: each text has its own count',
      {
        predictions: [
          { embeddings: { statistics: { truncated: false, token_count: 6 }, values: [0.1] } },
          { embeddings: { statistics: { truncated: false, token_count: 9 }, values: [0.2] } },
        ],
        metadata: { billableCharacterCount: 41 },
      },
      { prompt: 15, kept: 0, input: 15, output: null, total: 15 },
    ],
    [
      'predictions of Vertex AI',
      {
        predictions: [{ content: 'It flows.' }],
        metadata: {
          tokenMetadata: {
            inputTokenCount: { totalTokens: 12, totalBillableCharacters: 40 },
            outputTokenCount: { totalTokens: 3, totalBillableCharacters: 8 },
          },
        },
      },
      { prompt: 12, kept: 0, input: 12, output: 3, total: 15 },
    ],
    [
      'Gemini that tells a sum only',
      { usageMetadata: { totalTokenCount: 9 } },
      { prompt: null, kept: 0, input: null, output: null, total: 9 },
    ],
    [
      'Bedrock',
      {
        usage: {
          inputTokens: 10,
          outputTokens: 4,
          totalTokens: 14,
          cacheReadInputTokens: 90,
          cacheWriteInputTokens: 6,
        },
      },
      { prompt: 106, kept: 96, input: 16, output: 4, total: 20 },
    ],
    [
      'images',
      { data: [], usage: { input_tokens: 12, output_tokens: 4_160, total_tokens: 4_172 } },
      { prompt: 12, kept: 0, input: 12, output: 4_160, total: 4_172 },
    ],
  ])('is read for %s', (_name, body, expected) => {
    expect(usageOf(body)).toEqual(expected);
  });

  test('is collected from the parts of an Anthropic stream, and the last output replaces the one before', () => {
    const start = {
      type: 'message_start',
      message: {
        usage: {
          input_tokens: 3,
          cache_creation_input_tokens: 0,
          cache_read_input_tokens: 70,
          output_tokens: 1,
        },
      },
    };
    const delta = (output: number) => ({
      type: 'message_delta',
      delta: {},
      usage: { input_tokens: null, output_tokens: output },
    });
    expect(usageOf(start, delta(9), delta(15))).toEqual({
      prompt: 73,
      kept: 70,
      input: 3,
      output: 15,
      total: 18,
    });
    expect(usageOf(start)).toMatchObject({ input: 3, output: 1 });
  });

  test('is read from the fields of Bedrock, whatever the model, where they state the output', () => {
    const fields = (output: string) =>
      new Map([
        ['x-amzn-bedrock-input-token-count', '14'],
        ['x-amzn-bedrock-output-token-count', output],
        ['x-amzn-bedrock-cache-read-input-token-count', '90'],
      ]);
    expect(usageInFields(fields('36'))).toEqual({ prompt: 104, kept: 90, input: 14, output: 36, total: 50 });
    expect(usageInFields(fields('many'))).toBeNull();
    expect(usageInFields(new Map())).toBeNull();
  });

  test('is read from the last part of a stream of Bedrock', () => {
    const part = (document: object) =>
      `{"bytes":"${Buffer.from(JSON.stringify(document)).toString('base64')}","p":"abc"}`;
    const metrics = { inputTokenCount: 14, outputTokenCount: 36, invocationLatency: 9 };
    const text = `${part({ outputText: 'x' })}\u0000${part({ 'amazon-bedrock-invocationMetrics': metrics })}`;
    expect(usageOf(bedrockPart(text))).toEqual({ prompt: 14, kept: 0, input: 14, output: 36, total: 50 });
    expect(bedrockPart('{"bytes":5}')).toBe('');
  });

  test('is found at the end of a body that was cut, and anywhere in a body that is whole', () => {
    const body = JSON.stringify({ data: 'x'.repeat(20_000), usage: { prompt_tokens: 8, total_tokens: 8 } });
    expect(usageOf(body.slice(-8_000))?.total).toBe(8);
    const before = JSON.stringify({ usage: { prompt_tokens: 8, total_tokens: 9 }, data: 'x'.repeat(20_000) });
    expect(usageOf(before)?.total).toBe(9);
  });

  test.each([
    ['what the model wrote', { choices: [{ message: { content: '"usage":{"total_tokens":99}' } }] }],
    ['an empty one of a running stream', { choices: [], usage: null }],
    ['a transcription that counts seconds', { text: 'hi', usage: { type: 'duration', seconds: 9 } }],
    ['negative counts', { usage: { prompt_tokens: -4, completion_tokens: 3, total_tokens: -1 } }],
    ['text for counts', { usage: { prompt_tokens: '4', total_tokens: '8' } }],
    ['a count that nobody can have used', { usage: { prompt_tokens: 1, total_tokens: 1e300 } }],
  ])('is not read from %s', (_name, body) => {
    expect(usageOf(body)?.total ?? null).toBeNull();
  });

  test('never throws and is a possible count, whatever the body says', () => {
    const value = fc.oneof(fc.double(), fc.integer(), fc.string(), fc.constant(null), fc.constant({}));
    const members = fc.dictionary(
      fc.constantFrom(
        'prompt_tokens',
        'completion_tokens',
        'total_tokens',
        'input_tokens',
        'output_tokens',
        'cache_read_input_tokens',
        'cache_creation_input_tokens',
        'prompt_tokens_details',
        'promptTokenCount',
        'inputTokens',
      ),
      value,
    );
    fc.assert(
      fc.property(members, fc.nat(200), fc.boolean(), (usage, cut, isGroq) => {
        const text = JSON.stringify({ usage, ...(isGroq ? { x_groq: {} } : {}) });
        for (const reported of [usageOf(text), usageOf(text.slice(cut)), usageOf(text.slice(0, cut))]) {
          for (const tokens of Object.values(reported ?? {})) {
            expect(tokens === null || (Number.isFinite(tokens) && Number(tokens) >= 0)).toBe(true);
          }
        }
      }),
    );
  });
});
