/** What a call of each real client is charged: the tokens that its provider counts, as `usage` states them, whole and streamed. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { describe, expect, test } from '@jest/globals';
import { generateText, streamText } from 'ai';
import Groq from 'groq-sdk';
import OpenAI from 'openai';
import { expectCharged, type Charging, type Reach } from './charging.ts';
import { responseText } from './provider-forms.ts';

const prompt = 'Where does water go?';
/** Characters / 4, and 3 for a conversation. */
const guessedPrompt = 8;
const messages = [{ role: 'user' as const, content: prompt }];

interface Chunk {
  readonly choices: readonly { readonly delta: { readonly content?: string | null } }[];
}

/** The words of a streamed chat. */
async function wordsOf<C extends Chunk>(
  stream: AsyncIterable<C>,
  onChunk: (chunk: C) => void = () => {},
): Promise<string> {
  const words: string[] = [];
  for await (const chunk of stream) {
    onChunk(chunk);
    words.push(chunk.choices[0]?.delta.content ?? '');
  }
  return words.filter((word) => word !== '').join(' ');
}

/** Cached tokens count like all others. */
const openaiChat: Charging = {
  header: 'authorization',
  usages: [
    {
      prompt_tokens: 2_000,
      prompt_tokens_details: { cached_tokens: 1_920 },
      completion_tokens: 400,
      completion_tokens_details: { reasoning_tokens: 128 },
      total_tokens: 2_400,
    },
  ],
};
const openaiResponse: Charging = {
  header: 'authorization',
  usages: [
    {
      input_tokens: 2_000,
      input_tokens_details: { cached_tokens: 1_920 },
      output_tokens: 500,
      output_tokens_details: { reasoning_tokens: 128 },
      total_tokens: 2_500,
    },
  ],
};

describe('openai is charged', () => {
  const client = ({ apiKey, url }: Reach): OpenAI => new OpenAI({ apiKey, baseURL: `${url}/v1` });
  const chat = { model: 'gpt-4o', messages, max_completion_tokens: 700 };
  const response = { model: 'gpt-4o', input: prompt, max_output_tokens: 5_000 };

  test('for a chat what its usage says', async () => {
    await expectCharged(2_400, openaiChat, async (reach) => {
      const completion = await client(reach).chat.completions.create(chat);
      expect(completion.choices[0]?.message.content).toBe(responseText);
    });
  });

  test('for a streamed chat with include_usage what its last chunk says', async () => {
    await expectCharged(2_400, openaiChat, async (reach) => {
      const asking = { ...chat, stream: true as const, stream_options: { include_usage: true } };
      expect(await wordsOf(await client(reach).chat.completions.create(asking))).toBe(responseText);
    });
  });

  test('for a streamed chat without include_usage what was reserved, and nothing is added to the call', async () => {
    const asking = { ...chat, stream: true as const };
    const bodies = await expectCharged(guessedPrompt + 700, openaiChat, async (reach) => {
      expect(await wordsOf(await client(reach).chat.completions.create(asking))).toBe(responseText);
    });
    expect(bodies).toEqual([asking]);
  });

  test('for a response what its usage says', async () => {
    await expectCharged(2_500, openaiResponse, async (reach) => {
      expect((await client(reach).responses.create(response)).output_text).toBe(responseText);
    });
  });

  test('for a streamed response what its last event says', async () => {
    await expectCharged(2_500, openaiResponse, async (reach) => {
      const final = await client(reach).responses.stream(response).finalResponse();
      expect([final.output_text, final.usage?.total_tokens]).toEqual([responseText, 2_500]);
    });
  });
});

describe('@anthropic-ai/sdk is charged for a prompt that enters the cache, and not for the next one that is read from it,', () => {
  const written = {
    input_tokens: 50,
    cache_creation_input_tokens: 2_000,
    cache_read_input_tokens: 0,
    output_tokens: 300,
  };
  const read = { ...written, cache_creation_input_tokens: 0, cache_read_input_tokens: 2_000 };
  const charging: Charging = { header: 'x-api-key', usages: [written, read] };
  const system = {
    type: 'text' as const,
    text: 'x'.repeat(8_000),
    cache_control: { type: 'ephemeral' as const },
  };
  const body = { model: 'claude-sonnet-5', max_tokens: 1_000, system: [system], messages };

  test.each<[string, (client: Anthropic) => Promise<Anthropic.Message>]>([
    ['in one piece', async (client) => await client.messages.create(body)],
    ['in a stream', (client) => client.messages.stream(body).finalMessage()],
  ])('%s', async (_name, create) => {
    await expectCharged(50 + 2_000 + 300 + 50 + 300, charging, async ({ apiKey, url }) => {
      const client = new Anthropic({ apiKey, baseURL: url });
      expect((await create(client)).usage).toMatchObject(written);
      const second = await create(client);
      expect(second.usage).toMatchObject(read);
      expect(second.content).toMatchObject([{ text: responseText }]);
    });
  });
});

describe('groq-sdk is charged for all but cached tokens of', () => {
  const charging: Charging = {
    header: 'authorization',
    usages: [
      {
        queue_time: 0.04,
        prompt_tokens: 4_641,
        prompt_tokens_details: { cached_tokens: 4_608 },
        completion_tokens: 1_817,
        total_tokens: 6_458,
      },
    ],
  };
  const body = { model: 'openai/gpt-oss-20b', messages, max_completion_tokens: 3_000 };
  const client = ({ apiKey, url }: Reach): Groq => new Groq({ apiKey, baseURL: url });

  test('a chat', async () => {
    await expectCharged(1_850, charging, async (reach) => {
      const completion = await client(reach).chat.completions.create(body);
      expect(completion.choices[0]?.message.content).toBe(responseText);
    });
  });

  test('a streamed chat, whose last chunk states usage unasked', async () => {
    await expectCharged(1_850, charging, async (reach) => {
      let total: number | undefined;
      const stream = await client(reach).chat.completions.create({ ...body, stream: true });
      const words = await wordsOf(stream, (chunk) => {
        total = chunk.x_groq?.usage?.total_tokens ?? total;
      });
      expect([words, total]).toEqual([responseText, 6_458]);
    });
  });
});

describe('the Vercel AI SDK is charged', () => {
  const call = { prompt, maxOutputTokens: 1_000 };

  test.each([
    ['a chat', 'chat', openaiChat, 2_400],
    ['a response', 'responses', openaiResponse, 2_500],
  ] as const)('for %s what its usage says, whole and in a stream', async (_name, api, charging, units) => {
    await expectCharged(2 * units, charging, async ({ apiKey, url }) => {
      const model = createOpenAI({ apiKey, baseURL: `${url}/v1` })[api]('gpt-4o');
      expect((await generateText({ model, ...call })).text).toBe(responseText);
      expect((await streamText({ model, ...call }).usage).totalTokens).toBe(units);
    });
  });
});

/** Clients in processes of their own: one needs what jest's global object lacks, the other takes seconds to load in it. */
describe.each<[string, string, number, number, Charging]>([
  [
    '@google/genai is charged for the input alone',
    'gemini-client.mjs',
    940,
    1_890,
    {
      header: 'x-goog-api-key',
      usages: [
        {
          promptTokenCount: 900,
          cachedContentTokenCount: 600,
          toolUsePromptTokenCount: 40,
          candidatesTokenCount: 250,
          thoughtsTokenCount: 700,
          totalTokenCount: 1_890,
        },
      ],
    },
  ],
  [
    '@mistralai/mistralai is charged for all tokens',
    'mistral-client.mjs',
    1_940,
    1_940,
    {
      header: 'authorization',
      usages: [{ prompt_tokens: 1_600, completion_tokens: 340, total_tokens: 1_940 }],
    },
  ],
])('%s', (_name, program, units, total, charging) => {
  test('of a call in one piece and of a streamed one', async () => {
    await expectCharged(2 * units, charging, async ({ apiKey, url }) => {
      const path = fileURLToPath(new URL(program, import.meta.url));
      const env = { ...process.env, SLUICE_KEY: apiKey, SLUICE_URL: url };
      const { stdout } = await promisify(execFile)(process.execPath, [path], { env });
      expect(JSON.parse(stdout)).toEqual(Array(2).fill({ text: responseText, total }));
    });
  });
});
