/** Official clients in processes of their own: one needs what jest’s global object lacks, others take seconds to load in it. And which time-out the fields of clients tell, or which client they name: what the table of the policy rests on. */
import type { IncomingHttpHeaders } from 'node:http';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeEach, expect, test } from '@jest/globals';
import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import { generateText } from 'ai';
import OpenAI from 'openai';
import Shopify from 'shopify-api-node';
import { clientTimeouts } from '../../src/client-waits.policy.ts';
import { listening } from '../support/listening.ts';
import { run, upstreams } from './upstream.ts';

const mebibyte = 1_048_576;
const start = upstreams();
const model = (field: string): string =>
  `kind: language-model, credential: { header: ${field}, value: upstream-secret }, limits: { tokensPerMinute: 30000 }`;

test.each([
  [
    'groq-sdk',
    `import Groq from 'groq-sdk';
    const client = new Groq({ apiKey, baseURL });
    const { choices } = await client.chat.completions.create({ model: 'm', messages });`,
  ],
  [
    '@mistralai/mistralai',
    `import { Mistral } from '@mistralai/mistralai';
    const client = new Mistral({ apiKey, serverURL: baseURL });
    const { choices } = await client.chat.complete({ model: 'm', messages });`,
  ],
  [
    '@slack/web-api',
    `import { WebClient } from '@slack/web-api';
    const client = new WebClient(apiKey, { slackApiUrl: baseURL + '/api/' });
    const { choices } = await client.chat.postMessage({ channel: 'C1', text: messages[0].content });`,
  ],
])('%s is served with key and base URL of Sluice', async (_name, chat) => {
  const message = { role: 'assistant', content: 'water finds its way' };
  const choices = [{ index: 0, message, finish_reason: 'stop' }];
  const usage = { prompt_tokens: 4, completion_tokens: 4, total_tokens: 8 };
  const response = { id: 'c', object: 'chat.completion', created: 1_790_000_000, model: 'm', choices, usage };
  const behind = await start(model('authorization'), () => [200, { ok: true, ...response }]);
  const program = `
    const { SLUICE_KEY: apiKey, SLUICE_URL: baseURL } = process.env;
    const messages = [{ role: 'user', content: 'Where does water go?' }];
    ${chat}
    console.log(choices[0].message.content);`;
  const args = ['--input-type=module', '--eval', program];
  expect(await run(behind, process.execPath, args, { SLUICE_URL: behind.url })).toBe('water finds its way\n');
  expect(behind.log.map(({ fields }) => fields.authorization)).toEqual(['upstream-secret']);
});

test('@google/genai uploads a file in parts through the gateway, with its credential', async () => {
  const size = 9 * mebibyte;
  let left = size;
  const behind = await start(model('x-goog-api-key'), ({ body, fields, origin }) => {
    const command = String(fields['x-goog-upload-command']);
    const url = `${origin}/upload/v1beta/files?upload_id=u1&upload_protocol=resumable`;
    if (command === 'start') return [200, {}, { 'x-goog-upload-url': url }];
    left -= body.length;
    const isDone = left === 0 && command.includes('finalize');
    const file = { name: 'files/f1', state: 'ACTIVE' };
    return [200, isDone ? { file } : {}, { 'x-goog-upload-status': isDone ? 'final' : 'active' }];
  });
  const program = fileURLToPath(new URL('gemini-client.mjs', import.meta.url));
  const printed = await run(behind, process.execPath, [program, String(size)], { SLUICE_URL: behind.url });
  expect(JSON.parse(printed)).toMatchObject({ name: 'files/f1' });
  expect(left).toBe(0);
  expect(behind.log.length).toBeGreaterThanOrEqual(3);
  for (const { line, fields } of behind.log) {
    expect(fields['x-goog-api-key']).toBe('upstream-secret');
    expect(line).not.toContain(behind.apiKey);
  }
});

let seen: IncomingHttpHeaders[];
const { url, port, close } = await listening((request, response) => {
  seen.push(request.headers);
  // A connection that stays idle between two clients may be closed just when the next one uses it.
  response.writeHead(400, { 'content-type': 'application/json', connection: 'close' }).end('{}');
});
afterAll(close);
beforeEach(() => {
  seen = [];
});

const messages = [{ role: 'user' as const, content: 'x' }];
const chat = { model: 'gpt-4o', messages };
const message = { model: 'claude-sonnet-5', max_tokens: 1, messages };
const openai = (more = {}) => new OpenAI({ apiKey: 'k', baseURL: url, ...more }).chat.completions;
const anthropic = (more = {}) => new Anthropic({ apiKey: 'k', baseURL: url, ...more }).messages;
const admin = () => ({
  storeDomain: 'acme.myshopify.com',
  apiVersion: '2026-10',
  accessToken: 'k',
  customFetchApi: (_: string | URL, init?: RequestInit) => fetch(url, init),
});
const vercel = () =>
  generateText({ model: createOpenAI({ apiKey: 'k', baseURL: url }).chat('gpt-4o'), prompt: 'x' });
const graphql = () => createAdminApiClient({ ...admin(), userAgentPrefix: 'app' });
function shopify() {
  const client = new Shopify({ shopName: 'acme', accessToken: 'k', apiVersion: '2026-10' });
  return Object.assign(client, { baseUrl: { hostname: '127.0.0.1', port, protocol: 'http:' } }).shop.get();
}

test.each<[string, () => Promise<unknown>, number | null, number?]>([
  ['openai', () => openai().create(chat), null],
  ['openai with a time-out of the client', () => openai({ timeout: 20_000 }).create(chat), null],
  ['openai with a time-out of the call', () => openai().create(chat, { timeout: 20_000 }), 20],
  ['@anthropic-ai/sdk', () => anthropic().create(message), 600],
  ['@anthropic-ai/sdk with one under a second', () => anthropic({ timeout: 900 }).create(message), 0],
  ['the AI SDK', vercel, null],
  ['@shopify/admin-api-client, REST', () => createAdminRestApiClient(admin()).get('shop'), null],
  ['the same, GraphQL, with an application', () => graphql().request('{ shop { name } }'), null],
  ['Node’s fetch', () => fetch(url), null],
  ['shopify-api-node', shopify, null, 60],
])('the known time-out is the real one of %s', async (_, send, statedSeconds, knownSeconds = 300) => {
  await send().catch(() => {});
  expect(seen).toHaveLength(1);
  const fields = Object.entries(seen[0] ?? {}).map(([name, value]) => [name, String(value)] as const);
  expect(clientTimeouts(new Map(fields))).toEqual({ statedSeconds, knownSeconds });
});
