/**
 * What a call of a real client is charged, whole and streamed: of providers whose `usage` the simulators do not state. What counts in
 * the words of each provider: `test/dispatch/feedback/usage.test.ts`.
 */
import { fileURLToPath } from 'node:url';
import { expect, test } from '@jest/globals';
import Groq from 'groq-sdk';
import OpenAI from 'openai';
import { until } from '../support/until.ts';
import { responseText, stating } from './provider-forms.ts';
import { run, upstreams, type Behind } from './upstream.ts';

const start = upstreams();
/** Drains one token in 10 ms. */
const limit = 6_000;
const messages = [{ role: 'user' as const, content: 'Where does water go?' }];
/** Characters / 4, and 3 for a conversation. */
const guessedPrompt = 8;

const groqUsage = {
  prompt_tokens: 4_641,
  prompt_tokens_details: { cached_tokens: 4_608 },
  completion_tokens: 1_817,
  total_tokens: 6_458,
};
const geminiUsage = {
  promptTokenCount: 900,
  cachedContentTokenCount: 600,
  toolUsePromptTokenCount: 40,
  candidatesTokenCount: 250,
  thoughtsTokenCount: 700,
  totalTokenCount: 1_890,
};
const mistralUsage = { prompt_tokens: 1_600, completion_tokens: 340, total_tokens: 1_940 };

interface Chunk {
  readonly choices: readonly { readonly delta: { readonly content?: string | null } }[];
}
/** The words of a streamed chat. */
async function wordsOf(stream: AsyncIterable<Chunk>): Promise<string> {
  const words: string[] = [];
  for await (const { choices } of stream) words.push(choices[0]?.delta.content ?? '');
  return words.filter((word) => word !== '').join(' ');
}

const openai = async ({ apiKey, url, log }: Behind): Promise<string> => {
  const streamed = { model: 'gpt-4o', messages, max_completion_tokens: 700, stream: true as const };
  const { completions } = new OpenAI({ apiKey, baseURL: `${url}/v1` }).chat;
  const words = await wordsOf(await completions.create(streamed));
  expect(log.map(({ body }) => JSON.parse(body) as unknown)).toEqual([streamed]);
  return words;
};
const groq = async ({ apiKey, url }: Behind): Promise<string> => {
  const { completions } = new Groq({ apiKey, baseURL: url }).chat;
  const chat = { model: 'openai/gpt-oss-20b', messages, max_completion_tokens: 3_000 };
  expect((await completions.create(chat)).choices[0]?.message.content).toBe(responseText);
  return wordsOf(await completions.create({ ...chat, stream: true }));
};
/** A client in a process of its own: one needs what jest's global object lacks, the other takes seconds to load in it. */
const program = (name: string, total: number) => async (behind: Behind) => {
  const path = fileURLToPath(new URL(name, import.meta.url));
  const printed = await run(behind, process.execPath, [path], { SLUICE_URL: behind.url });
  expect(JSON.parse(printed)).toEqual(Array(2).fill({ text: responseText, total }));
  return responseText;
};
const unasked = 'what was reserved of a streamed chat without include_usage, to which nothing is added';

test.each<[string, string, Readonly<Record<string, unknown>>, number, (behind: Behind) => Promise<unknown>]>([
  ['openai', unasked, mistralUsage, guessedPrompt + 700, openai],
  ['groq-sdk', 'all but cached tokens, also unasked in the last chunk', groqUsage, 2 * 1_850, groq],
  ['@google/genai', 'the input alone, twice', geminiUsage, 2 * 940, program('gemini-client.mjs', 1_890)],
  [
    '@mistralai/mistralai',
    'all tokens, twice',
    mistralUsage,
    2 * 1_940,
    program('mistral-client.mjs', 1_940),
  ],
])('%s is charged for %s', async (name, _what, usage, units, calls) => {
  const field = name === '@google/genai' ? 'x-goog-api-key' : 'authorization';
  const credential = `credential: { header: ${field}, value: upstream-secret }`;
  const behind = await start(
    `kind: language-model, ${credential}, limits: { tokensPerMinute: ${limit} }`,
    stating(usage),
  );
  const beganAt = performance.now();
  expect(await calls(behind)).toBe(responseText);
  const bucket = () => behind.gateway.service.gateway.parts.pressure.buckets()[0]?.snapshot;
  await until(() => bucket()?.inFlight === 0);
  const level = bucket()?.meters.find(({ meter }) => meter === 'tokens')?.level ?? NaN;
  const drained = ((performance.now() - beganAt) * limit) / 60_000;
  expect(level).toBeLessThanOrEqual(units);
  expect(level).toBeGreaterThanOrEqual(units - drained - 1);
});
