import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { afterEach, describe, expect, test } from '@jest/globals';
import { embed, generateText, streamText } from 'ai';
import { AzureOpenAI } from 'openai';
import type { LanguageModelOptions, LanguageModelSimulator } from '../../simulators/language-model.ts';
import { fastClock } from '../support/fast-clock.ts';
import { throughProxy } from './through-proxy.ts';
import { highCeilings, startWorld, tally, type World, type WorldOptions } from '../journey/world.ts';

let world: World;
let claude: LanguageModelSimulator;
afterEach(() => world.close());

const key = (): string => world.gateway.keys['acme'] ?? '';

/** A world whose language model is Anthropic's; the workspace's key comes where the client puts its own. */
async function anthropicWorld(model: LanguageModelOptions = {}, more: WorldOptions = {}): Promise<Anthropic> {
  world = await startWorld({
    ...more,
    model: { dialect: 'anthropic', ...model },
    modelMore: '',
    workspaces: {
      acme: `${highCeilings}    credentials: { openai: { header: x-api-key, value: sk-sim } }\n`,
    },
  });
  claude = world.model;
  return new Anthropic({ apiKey: key(), baseURL: `${world.gateway.url}/via/openai` });
}

const call = {
  model: 'claude-sonnet-5',
  max_tokens: 4,
  messages: [{ role: 'user' as const, content: 'Where does water go?' }],
};

describe('the Anthropic client', () => {
  test('sends messages, whole and streamed, with the API key in x-api-key', async () => {
    const client = await anthropicWorld();
    expect(await client.messages.create(call)).toMatchObject({ content: [{ text: 'water finds its way' }] });
    const streamed = await client.messages.stream(call).finalMessage();
    expect(streamed.usage.output_tokens).toBe(4);
    expect(claude.log.map(({ key: sent }) => sent)).toEqual(['sk-sim', 'sk-sim']);
  });

  test('works through /proxy, too', async () => {
    await anthropicWorld();
    const client = new Anthropic({
      apiKey: key(),
      baseURL: world.modelUrl,
      fetch: throughProxy(world.gateway.url),
    });
    expect((await client.messages.create(call)).stop_reason).toBe('max_tokens');
  });

  test('sees neither a 429 nor an overload that passes', async () => {
    const client = await anthropicWorld();
    const body = { type: 'error', error: { type: 'rate_limit_error', message: 'slow down' } };
    claude.fault({ kind: 'answer', status: 429, headers: { 'retry-after': '1' }, body });
    expect((await client.messages.create(call)).stop_reason).toBe('max_tokens');
    claude.configure({ overload: 'server_is_overloaded' });
    const held = client.messages.create(call);
    while (claude.log.length < 3) await new Promise((resolve) => setTimeout(resolve, 5));
    claude.configure({ overload: null });
    expect((await held).stop_reason).toBe('max_tokens');
    expect(claude.log.map(({ headers }) => headers?.['x-stainless-retry-count'])).toEqual([
      '0',
      '0',
      '0',
      '0',
    ]);
  });

  test.each([90, -90])(
    'is paced by resets of an upstream whose clock is %i s off',
    async (clockSkewSeconds) => {
      const client = await anthropicWorld({
        clockSkewSeconds,
        models: { 'claude-sonnet-5': { rpm: 60, itpm: 100_000, otpm: 100_000 } },
      });
      await Promise.all(Array.from({ length: 62 }, () => client.messages.create(call)));
      expect(tally(claude.log)[200]).toBe(62);
      expect(tally(claude.log)[429] ?? 0).toBeLessThanOrEqual(3);
      const times = claude.log.map(({ t }) => t);
      // 60 at once, then one a second: 2 s; never the 90 s of the difference.
      expect(Math.max(...times) - Math.min(...times)).toBeLessThan(30_000);
    },
  );
});

test('the Azure client waits for the renewal of its tokens, where a refusal says to come back at once', async () => {
  world = await startWorld({
    clock: fastClock(60),
    model: { dialect: 'azure', models: { dep: { rpm: 60, tpm: 5_000 } } },
    workspaces: {
      acme: `${highCeilings}    credentials: { openai: { header: api-key, value: sk-sim } }\n`,
    },
  });
  const { model } = world;
  model.fault({
    kind: 'answer',
    status: 429,
    headers: {
      'retry-after': '1',
      'retry-after-ms': '0',
      'x-ratelimit-limit-tokens': '5000',
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-reset-tokens': '0',
      'x-ratelimit-renewalperiod-tokens': '60',
    },
    body: { error: { code: '429', message: 'Requests have exceeded token rate limit of your tier.' } },
  });
  const client = new AzureOpenAI({
    apiKey: key(),
    apiVersion: '2024-10-21',
    baseURL: `${world.gateway.url}/via/openai/openai/deployments/dep`,
    maxRetries: 0,
  });
  const { choices } = await client.chat.completions.create({
    model: 'dep',
    max_tokens: 4,
    messages: call.messages,
  });
  expect(choices).toHaveLength(1);
  expect(tally(model.log)).toEqual({ 429: 1, 200: 1 });
  const [refused, sent] = model.log;
  expect((sent?.arrivedT ?? 0) - (refused?.t ?? 0)).toBeGreaterThanOrEqual(59_000);
});

describe('the Vercel AI SDK', () => {
  test('generates, streams and embeds', async () => {
    world = await startWorld();
    const openai = createOpenAI({ apiKey: key(), baseURL: `${world.gateway.url}/via/openai/v1` });
    for (const model of [openai.chat('gpt-4o'), openai.responses('gpt-4o')]) {
      const whole = await generateText({ model, prompt: 'Where to?' });
      expect(whole.text.split(' ')).toHaveLength(16);
      expect(await streamText({ model, prompt: 'Where to?' }).text).toBe(whole.text);
    }
    const vector = await embed({
      model: openai.textEmbeddingModel('text-embedding-3-small'),
      value: 'water',
    });
    expect(vector.embedding).toHaveLength(16);
  });

  test('works through /proxy, and sees no 429 that Sluice can absorb', async () => {
    world = await startWorld();
    const openai = createOpenAI({
      apiKey: key(),
      baseURL: `${world.modelUrl}/v1`,
      fetch: throughProxy(world.gateway.url),
    });
    const body = { error: { message: 'slow down', type: 'requests', code: 'rate_limit_exceeded' } };
    world.model.fault({ kind: 'answer', status: 429, headers: { 'retry-after-ms': '150' }, body });
    const { text } = await generateText({ model: openai.chat('gpt-4o'), prompt: 'Where to?' });
    expect(text).not.toBe('');
    expect(tally(world.model.log)).toEqual({ 429: 1, 200: 1 });
  });

  describe('when the upstream asks for 61 s, which this client does not honour,', () => {
    const slowDown = { error: { message: 'slow down', type: 'requests', code: 'rate_limit_exceeded' } };
    const refusal = {
      kind: 'answer',
      status: 429,
      headers: { 'retry-after': '61' },
      body: slowDown,
    } as const;

    test('is held until then', async () => {
      world = await startWorld({ clock: fastClock(60) });
      const openai = createOpenAI({ apiKey: key(), baseURL: `${world.gateway.url}/via/openai/v1` });
      world.model.fault(refusal);
      const { text } = await generateText({ model: openai.chat('gpt-4o'), prompt: 'Where to?' });
      expect(text).not.toBe('');
      expect(tally(world.model.log)).toEqual({ 429: 1, 200: 1 });
      const [first, second] = world.model.log;
      expect((second?.arrivedT ?? 0) - (first?.t ?? 0)).toBeGreaterThanOrEqual(61_000);
    });

    test('is refused where it allows a shorter wait only, and its own attempts do not reach the upstream', async () => {
      world = await startWorld();
      const openai = createOpenAI({ apiKey: key(), baseURL: `${world.gateway.url}/via/openai/v1` });
      world.model.fault(refusal);
      const refused = generateText({
        model: openai.chat('gpt-4o'),
        prompt: 'Where to?',
        headers: { prefer: 'wait=5' },
        maxRetries: 1,
      });
      await expect(refused).rejects.toMatchObject({ lastError: { statusCode: 429 } });
      expect(tally(world.model.log)).toEqual({ 429: 1 });
    });
  });

  test('gets an upstream’s permanent refusal unchanged', async () => {
    world = await startWorld();
    world.model.configure({ quotaState: { 'org-sim': 'insufficient_quota' } });
    const openai = createOpenAI({ apiKey: key(), baseURL: `${world.gateway.url}/via/openai/v1` });
    // This client repeats even what can never succeed, whatever the response says; an option keeps it from that.
    const refused = generateText({ model: openai.chat('gpt-4o'), prompt: 'a', maxRetries: 0 });
    await expect(refused).rejects.toMatchObject({
      statusCode: 429,
      responseHeaders: { 'x-should-retry': 'false' },
      responseBody: expect.stringContaining('insufficient_quota'),
    });
  });
});
