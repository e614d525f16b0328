/** Asks real clients which time-out their fields tell, or which client they name: what the table of the policy rests on. */
import type { IncomingHttpHeaders } from 'node:http';
import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeEach, expect, test } from '@jest/globals';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import { generateText } from 'ai';
import OpenAI from 'openai';
import Shopify from 'shopify-api-node';
import { clientTimeouts } from '../../src/client-waits.policy.ts';
import { listening } from '../support/listening.ts';

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
