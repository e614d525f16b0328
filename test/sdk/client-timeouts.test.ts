/** Asks real clients which time-out their fields tell, or which client they name: what the table of the policy rests on. */
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import { generateText } from 'ai';
import OpenAI from 'openai';
import Shopify from 'shopify-api-node';
import { clientTimeouts } from '../../src/journey/preferences.policy.ts';

let server: Server;
let port: number;
let seen: IncomingHttpHeaders[];
beforeAll(async () => {
  server = createServer((request, response) => {
    seen.push(request.headers);
    // A connection that stays idle between two clients may be closed just when the next one uses it.
    response.writeHead(400, { 'content-type': 'application/json', connection: 'close' }).end('{}');
  });
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  ({ port } = server.address() as AddressInfo);
});
afterAll(() => new Promise((resolve) => void server.close(resolve)));
beforeEach(() => {
  seen = [];
});

const url = (): string => `http://127.0.0.1:${port}`;
const prompt = [{ role: 'user' as const, content: 'x' }];
const chat = { model: 'gpt-4o', messages: prompt };
const admin = () => ({
  storeDomain: 'acme.myshopify.com',
  apiVersion: '2026-10',
  accessToken: 'k',
  customFetchApi: (_: string | URL, init?: RequestInit) => fetch(url(), init),
});
const message = { model: 'claude-sonnet-5', max_tokens: 1, messages: prompt };

test.each([
  [
    'openai',
    () => new OpenAI({ apiKey: 'k', baseURL: url() }).chat.completions.create(chat),
    { statedSeconds: null, knownSeconds: 300 },
  ],
  [
    'openai with a time-out of the client',
    () => new OpenAI({ apiKey: 'k', baseURL: url(), timeout: 20_000 }).chat.completions.create(chat),
    { statedSeconds: null, knownSeconds: 300 },
  ],
  [
    'openai with a time-out of the call',
    () => new OpenAI({ apiKey: 'k', baseURL: url() }).chat.completions.create(chat, { timeout: 20_000 }),
    { statedSeconds: 20, knownSeconds: 300 },
  ],
  [
    '@anthropic-ai/sdk',
    () => new Anthropic({ apiKey: 'k', baseURL: url() }).messages.create(message),
    { statedSeconds: 600, knownSeconds: 300 },
  ],
  [
    '@anthropic-ai/sdk with a time-out of the client, under a second',
    () => new Anthropic({ apiKey: 'k', baseURL: url(), timeout: 900 }).messages.create(message),
    { statedSeconds: 0, knownSeconds: 300 },
  ],
  [
    'the AI SDK',
    () => generateText({ model: createOpenAI({ apiKey: 'k', baseURL: url() }).chat('gpt-4o'), prompt: 'x' }),
    { statedSeconds: null, knownSeconds: 300 },
  ],
  [
    '@shopify/admin-api-client, REST',
    () => createAdminRestApiClient(admin()).get('shop'),
    { statedSeconds: null, knownSeconds: 300 },
  ],
  [
    '@shopify/admin-api-client, GraphQL, with the name of the application',
    () => createAdminApiClient({ ...admin(), userAgentPrefix: 'app' }).request('{ shop { name } }'),
    { statedSeconds: null, knownSeconds: 300 },
  ],
  ['Node’s fetch', () => fetch(url()), { statedSeconds: null, knownSeconds: 300 }],
  [
    'shopify-api-node',
    () => {
      const client = new Shopify({ shopName: 'acme', accessToken: 'k', apiVersion: '2026-10' });
      Object.assign(client, { baseUrl: { hostname: '127.0.0.1', port, protocol: 'http:' } });
      return client.shop.get();
    },
    { statedSeconds: null, knownSeconds: 60 },
  ],
])('the known time-out is the real one of %s', async (_, send: () => Promise<unknown>, expected) => {
  await send().catch(() => {});
  expect(seen).toHaveLength(1);
  const fields = Object.entries(seen[0] ?? {}).map(([name, value]) => [name, String(value)] as const);
  expect(clientTimeouts(new Map(fields))).toEqual(expected);
});
