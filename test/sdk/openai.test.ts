import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import OpenAI, { toFile } from 'openai';
import { highCeilings, insideRetryAfter, startWorld, tally, type World } from '../journey/world.ts';
import { streamedChat } from './streamed-chat.ts';
import { throughProxy } from './through-proxy.ts';
import { until } from '../support/until.ts';

let world: World;
/** The two ways to bring the client here; its key is the workspace's, its retries are its own defaults. */
const forms = {
  '/via/': (): OpenAI => new OpenAI({ apiKey: key(), baseURL: `${world.gateway.url}/via/openai/v1` }),
  '/proxy': (): OpenAI =>
    new OpenAI({
      apiKey: key(),
      baseURL: `${world.modelUrl}/v1`,
      fetch: throughProxy(world.gateway.url),
    }),
};
const key = (): string => world.gateway.keys['acme'] ?? '';
const messages = [{ role: 'user' as const, content: 'Where does water go?' }];
beforeEach(async () => (world = await startWorld()));
afterEach(async () => {
  expect(insideRetryAfter(world.model.log)).toEqual([]);
  await world.close();
});

describe.each(['/via/', '/proxy'] as const)('the OpenAI client through %s', (form) => {
  test('chats, whole and streamed with its usage chunk', async () => {
    const client = forms[form]();
    const whole = await client.chat.completions.create({ model: 'gpt-4o', messages, max_tokens: 4 });
    expect(whole.choices[0]?.message.content).toBe('water finds its way');
    expect(await streamedChat(client)).toEqual({ words: 16, tokens: 5 + 3 + 16 });
    expect(world.model.log.map(({ key: sent }) => sent)).toEqual(['sk-sim', 'sk-sim']);
  });

  test('embeds, makes and edits pictures, lists models, streams responses', async () => {
    const client = forms[form]();
    const vectors = await client.embeddings.create({ model: 'text-embedding-3-small', input: ['a', 'b'] });
    expect(vectors.data[1]?.embedding.slice(0, 3)).toEqual([0, 0.125, 0.25]);
    expect(
      (await client.images.generate({ model: 'gpt-image-1', prompt: 'a gate', n: 2 })).data,
    ).toHaveLength(2);
    const picture = await toFile(Buffer.from('png'), 'a.png', { type: 'image/png' });
    expect(
      (await client.images.edit({ model: 'gpt-image-1', prompt: 'open', image: [picture] })).data,
    ).toHaveLength(1);
    expect((await client.models.list()).data.map(({ id }) => id)).toContain('gpt-4o');
    const response = await client.responses.stream({ model: 'gpt-4o', input: 'Where to?' }).finalResponse();
    expect(response.usage?.output_tokens).toBe(16);
    expect(world.model.log.filter(({ status }) => status >= 400)).toEqual([]);
  });

  test('sees no 429 that Sluice can absorb', async () => {
    const client = forms[form]();
    const { model } = world;
    model.fault({ kind: 'answer', status: 429, headers: { 'retry-after-ms': '120' }, body: {} });
    const { response } = await client.chat.completions.create({ model: 'gpt-4o', messages }).withResponse();
    expect(response.headers.get('sluice-admission')).toMatch(/attempts=2, absorbed=1/);
    expect(model.log.map(({ headers }) => headers?.['x-stainless-retry-count'])).toEqual(['0', '0']);
  });
});

describe('the OpenAI client with its default retries', () => {
  test('completes 50 chats at once on 500 calls and 30,000 tokens a minute without a refusal', async () => {
    const client = forms['/via/']();
    const { model } = world;
    const chats = Array.from({ length: 50 }, () =>
      client.chat.completions.create({ model: 'gpt-4o', messages, max_tokens: 612 }),
    );
    await Promise.all(chats);
    expect(tally(model.log)).toEqual({ 200: 50 });
  });

  test('throws once for what can never succeed: a call over the limit, or no credit', async () => {
    const client = forms['/via/']();
    const { model } = world;
    const large = client.chat.completions.create({ model: 'gpt-4o', messages, max_tokens: 100_000 });
    await expect(large).rejects.toMatchObject({ status: 429, code: 'rate_limit_exceeded' });
    expect(model.log).toHaveLength(1);
    model.configure({ quotaState: { 'org-sim': 'credit_balance_exhausted' } });
    const broke = client.chat.completions.create({ model: 'gpt-4o', messages });
    await expect(broke).rejects.toMatchObject({ code: expect.stringMatching(/quota|credit/) });
    expect(model.log).toHaveLength(2);
  });

  test('without credit in one project does not stop another project', async () => {
    await world.close();
    world = await startWorld({
      model: {
        orgs: { 'org-sim': { projects: { proj_a: { keys: ['sk-sim'] }, proj_b: { keys: ['sk-b'] } } } },
        quotaState: { proj_a: 'credit_balance_exhausted' },
      },
      workspaces: { acme: highCeilings, beta: `${highCeilings}    credentials: { openai: "Bearer sk-b" }\n` },
    });
    const client = forms['/via/']();
    const create = { model: 'gpt-4o', messages };
    await expect(client.chat.completions.create(create)).rejects.toMatchObject({ status: 429 });
    const other = client.withOptions({ apiKey: world.gateway.keys['beta'] ?? '' });
    expect((await other.chat.completions.create(create)).choices).toHaveLength(1);
    expect(world.model.log).toHaveLength(2);
  });

  test('gets a late 429 only once, because it closes the bucket', async () => {
    const client = forms['/via/']();
    const { model } = world;
    model.fault({ kind: 'late-429', ms: 150 });
    await Promise.all([1, 2, 3].map(() => client.chat.completions.create({ model: 'gpt-4o', messages })));
    expect(tally(model.log)[200]).toBe(3);
    expect(model.log.length).toBeLessThanOrEqual(6);
  });

  test('learns from Sluice’s refusals when to retry, and that they are Sluice’s', async () => {
    await world.close();
    world = await startWorld({ workspaces: { acme: '    requestsPerMinute: { openai: 1 }\n' } });
    const client = forms['/via/']();
    await client.chat.completions.create({ model: 'gpt-4o', messages });
    const refused = client.chat.completions.create(
      { model: 'gpt-4o', messages },
      { headers: { prefer: 'wait=45' } },
    );
    await expect(refused).rejects.toBeInstanceOf(OpenAI.RateLimitError);
    await expect(refused).rejects.toMatchObject({
      status: 429,
      code: 'wait_too_long',
      type: 'rate_limit_error',
    });
    expect(world.model.log).toHaveLength(1);
  });
});

describe('a stream of the OpenAI client', () => {
  test('that is aborted while it waits causes no upstream call, and in the middle it ends the upstream call', async () => {
    const client = forms['/via/']();
    const { model, settled } = world;
    await client.chat.completions.create({ model: 'gpt-4o', messages });
    const body = { error: { message: 'slow down', type: 'requests', code: 'rate_limit_exceeded' } };
    model.fault({ kind: 'answer', status: 429, headers: { 'retry-after-ms': '300' }, body });
    const first = client.chat.completions.create({ model: 'gpt-4o', messages });
    await until(() => model.log.length === 2);
    const leaving = new AbortController();
    const held = client.chat.completions.create(
      { model: 'gpt-4o', messages, stream: true },
      { signal: leaving.signal },
    );
    held.catch(() => {});
    await settled(2, 0);
    leaving.abort();
    await expect(held).rejects.toBeInstanceOf(OpenAI.APIUserAbortError);
    await first;
    expect(model.log).toHaveLength(3);

    model.configure({ latency: { baseMs: 0, perTokenMs: 30, jitter: 0 }, replyTokens: 500 });
    const stream = await client.chat.completions.create({ model: 'gpt-4o', messages, stream: true });
    let chunks = 0;
    for await (const chunk of stream) {
      chunks += chunk.choices.length;
      if (chunks === 3) break;
    }
    await until(() => model.log[3]?.endedT !== null);
    expect(model.log[3]).toMatchObject({ aborted: true });
    await settled(0, 0);
  });

  test('that is read slowly slows the upstream down, and arrives whole', async () => {
    const { model, gateway } = world;
    model.configure({ replyTokens: 150_000 });
    model.configure({ models: { 'gpt-4o': { rpm: 500 } } });
    const response = await fetch(`${gateway.url}/via/openai/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key()}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'gpt-4o', messages, stream: true }),
    });
    await new Promise((resolve) => setTimeout(resolve, 400));
    expect(model.log[0]?.endedT).toBeNull();
    const text = await response.text();
    expect(text.length).toBeGreaterThan(20_000_000);
    expect(text.trimEnd().endsWith('data: [DONE]')).toBe(true);
  });

  test('with an error inside it reaches the client as an error', async () => {
    const client = forms['/via/']();
    world.model.fault({ kind: 'stream-error', afterChunks: 3 });
    const stream = await client.chat.completions.create({ model: 'gpt-4o', messages, stream: true });
    const read = async (): Promise<void> => {
      for await (const chunk of stream) expect(chunk.object).toBe('chat.completion.chunk');
    };
    await expect(read()).rejects.toThrow();
    expect(world.model.log).toHaveLength(1);
  });
});
