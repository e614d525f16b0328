/** What a call of each real client is charged: the tokens that its provider counts, as `usage` states them, whole and streamed. */
import { fileURLToPath } from 'node:url';
import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { expect, test } from '@jest/globals';
import { generateText, streamText } from 'ai';
import Groq from 'groq-sdk';
import OpenAI from 'openai';
import { until } from '../support/until.ts';
import { responseText, stating } from './provider-forms.ts';
import { run, upstreams, type Behind } from './upstream.ts';

const start = upstreams();
/** Drains one token in 10 ms. */
const limit = 6_000;
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
  onChunk?: (chunk: C) => void,
): Promise<string> {
  const words: string[] = [];
  for await (const chunk of stream) {
    onChunk?.(chunk);
    words.push(chunk.choices[0]?.delta.content ?? '');
  }
  return words.filter((word) => word !== '').join(' ');
}

/** Usage in the provider's own names. Cached tokens count like all others at OpenAI, and nowhere else. */
const chatUsage = {
  prompt_tokens: 2_000,
  prompt_tokens_details: { cached_tokens: 1_920 },
  completion_tokens: 400,
  completion_tokens_details: { reasoning_tokens: 128 },
  total_tokens: 2_400,
};
const responseUsage = {
  input_tokens: 2_000,
  input_tokens_details: { cached_tokens: 1_920 },
  output_tokens: 500,
  output_tokens_details: { reasoning_tokens: 128 },
  total_tokens: 2_500,
};
const groqUsage = {
  queue_time: 0.04,
  prompt_tokens: 4_641,
  prompt_tokens_details: { cached_tokens: 4_608 },
  completion_tokens: 1_817,
  total_tokens: 6_458,
};
const written = {
  input_tokens: 50,
  cache_creation_input_tokens: 2_000,
  cache_read_input_tokens: 0,
  output_tokens: 300,
};
const read = { ...written, cache_creation_input_tokens: 0, cache_read_input_tokens: 2_000 };
const geminiUsage = {
  promptTokenCount: 900,
  cachedContentTokenCount: 600,
  toolUsePromptTokenCount: 40,
  candidatesTokenCount: 250,
  thoughtsTokenCount: 700,
  totalTokenCount: 1_890,
};
const mistralUsage = { prompt_tokens: 1_600, completion_tokens: 340, total_tokens: 1_940 };

const chats = ({ apiKey, url }: Behind) => new OpenAI({ apiKey, baseURL: `${url}/v1` }).chat.completions;
const responses = ({ apiKey, url }: Behind) => new OpenAI({ apiKey, baseURL: `${url}/v1` }).responses;
const chat = { model: 'gpt-4o', messages, max_completion_tokens: 700 };
const streamed = { ...chat, stream: true as const };
const response = { model: 'gpt-4o', input: prompt, max_output_tokens: 5_000 };
const groq = ({ apiKey, url }: Behind) => new Groq({ apiKey, baseURL: url }).chat.completions;
const groqChat = { model: 'openai/gpt-oss-20b', messages, max_completion_tokens: 3_000 };

async function vercel({ apiKey, url }: Behind, api: 'chat' | 'responses', total: number): Promise<string> {
  const model = createOpenAI({ apiKey, baseURL: `${url}/v1` })[api]('gpt-4o');
  const call = { model, prompt, maxOutputTokens: 1_000 };
  expect((await streamText(call).usage).totalTokens).toBe(total);
  return (await generateText(call)).text;
}

const system = {
  type: 'text' as const,
  text: 'x'.repeat(8_000),
  cache_control: { type: 'ephemeral' as const },
};
const cached = { model: 'claude-sonnet-5', max_tokens: 1_000, system: [system], messages };
/** Two calls, of which the first enters the prompt into the cache and the second reads it from there. */
async function anthropic(
  { apiKey, url: baseURL }: Behind,
  create: (messages: Anthropic['messages']) => PromiseLike<Anthropic.Message>,
): Promise<unknown> {
  const client = new Anthropic({ apiKey, baseURL });
  expect((await create(client.messages)).usage).toMatchObject(written);
  const second = await create(client.messages);
  expect(second.usage).toMatchObject(read);
  return second.content[0]?.type === 'text' ? second.content[0].text : null;
}

/** A client in a process of its own: one needs what jest's global object lacks, the other takes seconds to load in it. */
async function program(behind: Behind, name: string, total: number): Promise<unknown> {
  const path = fileURLToPath(new URL(name, import.meta.url));
  const printed = JSON.parse(
    await run(behind, process.execPath, [path], { SLUICE_URL: behind.url }),
  ) as unknown;
  expect(printed).toEqual(Array(2).fill({ text: responseText, total }));
  return responseText;
}

type Calls = (behind: Behind) => Promise<unknown>;
const wholeChat: Calls = async (b) => (await chats(b).create(chat)).choices[0]?.message.content;
const chatWithUsage: Calls = async (b) =>
  wordsOf(await chats(b).create({ ...streamed, stream_options: { include_usage: true } }));
const streamedChat: Calls = async (b) => {
  const words = await wordsOf(await chats(b).create(streamed));
  expect(b.log.map(({ body }) => JSON.parse(body.toString()) as unknown)).toEqual([streamed]);
  return words;
};
const wholeResponse: Calls = async (b) => (await responses(b).create(response)).output_text;
const streamedResponse: Calls = async (b) =>
  (await responses(b).stream(response).finalResponse()).output_text;
const wholeGroq: Calls = async (b) => (await groq(b).create(groqChat)).choices[0]?.message.content;
const streamedGroq: Calls = async (b) => {
  let total: number | undefined;
  const stream = await groq(b).create({ ...groqChat, stream: true });
  const words = await wordsOf(stream, ({ x_groq }) => (total = x_groq?.usage?.total_tokens ?? total));
  expect(total).toBe(6_458);
  return words;
};
const wholeClaude: Calls = (b) => anthropic(b, (all) => all.create(cached));
const streamedClaude: Calls = (b) => anthropic(b, (all) => all.stream(cached).finalMessage());
const gemini: Calls = (b) => program(b, 'gemini-client.mjs', 1_890);
const mistral: Calls = (b) => program(b, 'mistral-client.mjs', 1_940);
const unasked = 'what was reserved of a streamed chat without include_usage, to which nothing is added';

test.each<[string, string, readonly object[], number, Calls]>([
  ['openai', 'a chat', [chatUsage], 2_400, wholeChat],
  ['openai', 'a streamed chat with include_usage', [chatUsage], 2_400, chatWithUsage],
  ['openai', unasked, [chatUsage], guessedPrompt + 700, streamedChat],
  ['openai', 'a response', [responseUsage], 2_500, wholeResponse],
  ['openai', 'a streamed response', [responseUsage], 2_500, streamedResponse],
  ['groq-sdk', 'a chat', [groqUsage], 1_850, wholeGroq],
  ['groq-sdk', 'a streamed chat, whose last chunk states usage unasked', [groqUsage], 1_850, streamedGroq],
  ['the Vercel AI SDK', 'two chats', [chatUsage], 4_800, (b) => vercel(b, 'chat', 2_400)],
  ['the Vercel AI SDK', 'two responses', [responseUsage], 5_000, (b) => vercel(b, 'responses', 2_500)],
  ['@anthropic-ai/sdk', 'a cached prompt, once', [written, read], 2_700, wholeClaude],
  ['@anthropic-ai/sdk', 'a cached prompt, once, streamed', [written, read], 2_700, streamedClaude],
  ['@google/genai', 'the input alone, twice', [geminiUsage], 1_880, gemini],
  ['@mistralai/mistralai', 'all tokens, twice', [mistralUsage], 3_880, mistral],
])('%s is charged for %s', async (name, _what, usages, units, calls) => {
  const fields: Readonly<Record<string, string>> = {
    '@anthropic-ai/sdk': 'x-api-key',
    '@google/genai': 'x-goog-api-key',
  };
  const credential = `{ header: ${fields[name] ?? 'authorization'}, value: upstream-secret }`;
  const settings = `kind: language-model, credential: ${credential}, limits: { tokensPerMinute: ${limit} }`;
  const behind = await start(settings, stating(usages as readonly Record<string, unknown>[]));
  const beganAt = performance.now();
  expect(await calls(behind)).toBe(responseText);
  const bucket = () => behind.gateway.service.gateway.parts.pressure.buckets()[0]?.snapshot;
  await until(() => bucket()?.inFlight === 0);
  const level = bucket()?.meters.find(({ meter }) => meter === 'tokens')?.level ?? NaN;
  const drained = ((performance.now() - beganAt) * limit) / 60_000;
  expect(level).toBeLessThanOrEqual(units);
  expect(level).toBeGreaterThanOrEqual(units - drained - 1);
});
