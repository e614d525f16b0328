/** Official clients of language models and of shops: what they send and get through Sluice, and what they see of refusals. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { createAdminApiClient, createAdminRestApiClient } from '@shopify/admin-api-client';
import { embed, generateText, streamText } from 'ai';
import OpenAI, { toFile } from 'openai';
import {
  closeAll,
  highCeilings,
  insideRetryAfter,
  opened,
  refuseOnce,
  startWorld,
  tally,
  type World,
  type WorldOptions,
} from '../journey/world.ts';
import { upstreams } from './upstream.ts';

afterEach(closeAll);

/** A world, and the two ways to bring a client to it: its key is the workspace's, its retries are its own defaults. */
async function begin(options: WorldOptions = {}) {
  const started = await startWorld(options);
  const { gateway, model, modelUrl } = started;
  opened.push(async () => expect(insideRetryAfter(model.log)).toEqual([]));
  const apiKey = gateway.keys['acme'] ?? '';
  const throughProxy: typeof fetch = (input, init) => {
    const url = input instanceof Request ? input.url : input.toString();
    return fetch(`${gateway.url}/proxy?target=${encodeURIComponent(url)}`, init);
  };
  return {
    ...started,
    via: (path = '/v1') => ({ apiKey, baseURL: `${gateway.url}/via/openai${path}` }),
    proxy: (path = '/v1') => ({ apiKey, baseURL: `${modelUrl}${path}`, fetch: throughProxy }),
  };
}
const anthropicWorld: WorldOptions = {
  workspaces: { acme: `${highCeilings}    credentials: { openai: { header: x-api-key, value: sk-sim } }\n` },
  model: { dialect: 'anthropic' },
};

const messages = [{ role: 'user' as const, content: 'Where does water go?' }];
const chat = { model: 'gpt-4o', messages };
const message = { model: 'claude-sonnet-5', max_tokens: 4, messages };
const sentKeys = ({ log }: World['model']) => new Set(log.map(({ key }) => key));

describe.each(['via', 'proxy'] as const)('through /%s', (form) => {
  test('openai chats, whole and streamed with its usage chunk, and sees no 429 that Sluice can absorb', async () => {
    const { model, [form]: reach } = await begin();
    const { completions } = new OpenAI(reach()).chat;
    refuseOnce(model, { 'retry-after-ms': '120' });
    const { data, response } = await completions.create({ ...chat, max_tokens: 4 }).withResponse();
    expect(data.choices[0]?.message.content).toBe('water finds its way');
    expect(response.headers.get('sluice-admission')).toMatch(/attempts=2, absorbed=1/);
    const stream = completions.stream({ ...chat, stream_options: { include_usage: true } });
    expect((await stream.finalContent())?.split(' ')).toHaveLength(16);
    expect((await stream.totalUsage()).total_tokens).toBe(5 + 3 + 16);
    expect(model.log.map(({ headers }) => headers?.['x-stainless-retry-count'])).toEqual(['0', '0', '0']);
    expect(sentKeys(model)).toEqual(new Set(['sk-sim']));
  });

  test('openai embeds, makes and edits pictures, lists models, streams responses', async () => {
    const { model, [form]: reach } = await begin();
    const client = new OpenAI(reach());
    const vectors = await client.embeddings.create({ model: 'text-embedding-3-small', input: ['a', 'b'] });
    expect(vectors.data[1]?.embedding.slice(0, 3)).toEqual([0, 0.125, 0.25]);
    const picture = { model: 'gpt-image-1', prompt: 'a gate' };
    expect((await client.images.generate({ ...picture, n: 2 })).data).toHaveLength(2);
    const image = [await toFile(Buffer.from('png'), 'a.png', { type: 'image/png' })];
    expect((await client.images.edit({ ...picture, image })).data).toHaveLength(1);
    expect((await client.models.list()).data.map(({ id }) => id)).toContain('gpt-4o');
    const response = await client.responses.stream({ model: 'gpt-4o', input: 'Where to?' }).finalResponse();
    expect(response.usage?.output_tokens).toBe(16);
    expect(model.log.filter(({ status }) => status >= 400)).toEqual([]);
  });

  test('@anthropic-ai/sdk sends messages, whole and streamed, with the API key in x-api-key', async () => {
    const { model, [form]: reach } = await begin(anthropicWorld);
    const client = new Anthropic(reach(''));
    expect(await client.messages.create(message)).toMatchObject({
      content: [{ text: 'water finds its way' }],
    });
    expect((await client.messages.stream(message).finalMessage()).usage.output_tokens).toBe(4);
    expect(sentKeys(model)).toEqual(new Set(['sk-sim']));
  });

  test('the Vercel AI SDK generates, streams and embeds, and sees no 429 that Sluice can absorb', async () => {
    const { model: simulator, [form]: reach } = await begin();
    const openai = createOpenAI(reach());
    refuseOnce(simulator, { 'retry-after-ms': '150' });
    for (const model of [openai.chat('gpt-4o'), openai.responses('gpt-4o')]) {
      const { text } = await generateText({ model, prompt: 'Where to?' });
      expect(text.split(' ')).toHaveLength(16);
      expect(await streamText({ model, prompt: 'Where to?' }).text).toBe(text);
    }
    const model = openai.textEmbeddingModel('text-embedding-3-small');
    expect((await embed({ model, value: 'water' })).embedding).toHaveLength(16);
    expect(tally(simulator.log)).toEqual({ 429: 1, 200: 5 });
  });
});

test('openai with its default retries learns from Sluice’s refusals when to retry, and that they are Sluice’s', async () => {
  const { model, via } = await begin({ workspaces: { acme: '    requestsPerMinute: { openai: 1 }\n' } });
  const { completions } = new OpenAI(via()).chat;
  await completions.create(chat);
  const refused = completions.create(chat, { headers: { prefer: 'wait=45' } });
  await expect(refused).rejects.toBeInstanceOf(OpenAI.RateLimitError);
  const told = { status: 429, code: 'wait_too_long', type: 'rate_limit_error' };
  await expect(refused).rejects.toMatchObject(told);
  expect(model.log).toHaveLength(1);
});

const start = upstreams();
test('openai with a time-out of 2 s and 5 retries makes one upstream call and gets its response', async () => {
  const late = { object: 'chat.completion', choices: [{ message: { role: 'assistant', content: 'late' } }] };
  const { url, apiKey, log } = await start('kind: language-model, credential: token', async () => {
    // Longer than the client's time-out.
    await new Promise((resolve) => setTimeout(resolve, 3_000));
    return [200, late];
  });
  const client = new OpenAI({ apiKey, baseURL: `${url}/v1`, timeout: 2_000, maxRetries: 5 });
  const response = await client.chat.completions.create(chat);
  expect(response.choices[0]?.message.content).toBe('late');
  expect(log).toHaveLength(1);
});

const optionsOf = (world: World) => ({
  storeDomain: 'acme.myshopify.com',
  apiVersion: '2026-10',
  accessToken: world.gateway.keys['acme'] ?? '',
  customFetchApi: (url: string | URL, init?: RequestInit) => {
    const { pathname, search } = new URL(url);
    return fetch(`${world.gateway.url}/via/shop${pathname}${search}`, init);
  },
});

test('@shopify/admin-api-client reads and writes by REST', async () => {
  const world = await startWorld();
  const client = createAdminRestApiClient(optionsOf(world));
  expect(await (await client.get('products/count')).json()).toEqual({ count: 120 });
  const made = await client.post('products', { data: { product: { title: 'Cup' } } });
  expect(made.status).toBe(201);
  expect(world.shop.log.map(({ key: sent }) => sent)).toEqual(['shpat_sim', 'shpat_sim']);
});

test('@shopify/admin-api-client sends GraphQL, gets the cost unchanged, and sees no THROTTLED when the bucket is empty', async () => {
  const world = await startWorld();
  const client = createAdminApiClient(optionsOf(world));
  const query = 'query($n: Int) { products(first: $n) { nodes { id title } } }';
  const response = await client.request(query, { variables: { n: 1 } });
  expect(response.data).toMatchObject({ products: { nodes: [{ title: 'title 1' }] } });
  const throttleStatus = { maximumAvailable: 2000, restoreRate: 100 };
  expect(response.extensions).toMatchObject({ cost: { requestedQueryCost: 3, throttleStatus } });
  world.shop.consume(2000, { api: 'graphql' });
  const later = await client.request('{ products(first: 20) { nodes { id } } }');
  expect(later.errors).toBeUndefined();
  expect(later.data).toHaveProperty('products');
});
