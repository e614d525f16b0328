/** Clients that come back for their positions: the examples as processes of their own, and what an SDK does by itself. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import Anthropic from '@anthropic-ai/sdk';
import { afterEach, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { highCeilings, startWorld, tally, type World } from '../journey/world.ts';
import { until } from '../support/until.ts';

const example = (name: string): string => fileURLToPath(new URL(`../../examples/${name}`, import.meta.url));

let world: World;
afterEach(() => world.close());

/** The quota of a minute is used up: from now on a call goes as soon as one has drained. */
async function usedUp(perMinute = 60): Promise<void> {
  world = await startWorld({
    model: { models: { 'gpt-4o': { rpm: perMinute } } },
    modelLimits: `requestsPerMinute: ${perMinute}, learn: false`,
  });
  const replies = await Promise.all(Array.from({ length: perMinute }, (_, n) => world.chat(`before ${n}`)));
  expect(replies.filter(({ status }) => status !== 200)).toEqual([]);
}

const refusals = (): number => world.gateway.logs.filter((line) => line.includes('"wait_too_long"')).length;
const env = (): Record<string, string> => ({
  SLUICE_URL: world.gateway.url,
  SLUICE_KEY: world.gateway.keys['acme'] ?? '',
});

/** Runs an example to its end. Resolves with the lines that it prints. */
const linesOf = (
  name: string,
  args: readonly string[],
  more: Record<string, string> = {},
): Promise<string[]> =>
  new Promise((resolve, reject) => {
    execFile(
      process.execPath,
      [example(name), ...args],
      { env: { ...process.env, ...env(), ...more } },
      (error, out, err) => (error === null ? resolve(out.trimEnd().split('\n')) : reject(new Error(err))),
    );
  });

test('a batch waits for longer than its calls do, without connections, and the upstream refuses none of it', async () => {
  // Slower than a busy machine starts a process: were it faster, everything would have drained by then.
  await usedUp(20);
  const prompts = Array.from({ length: 7 }, (_, n) => `prompt ${n}`);
  expect(await linesOf('reserve-openai.mjs', prompts)).toHaveLength(prompts.length);
  expect(refusals()).toBeGreaterThan(0);
  expect(world.model.log.filter(({ decision }) => decision !== 'admitted')).toEqual([]);
}, 120_000);

test('a batch comes back when the upstream itself refuses a call for longer than it waits, which gives no ticket', async () => {
  world = await startWorld();
  const body = { error: { code: 'rate_limit_exceeded' } };
  world.model.fault({ kind: 'answer', status: 429, headers: { 'retry-after': '7' }, body });
  expect(await linesOf('reserve-openai.mjs', ['prompt'])).toHaveLength(1);
  expect(world.model.log.map(({ status }) => status)).toEqual([429, 200]);
}, 60_000);

test('an SDK that repeats its call when it is told to needs no ticket: it goes before whoever came after it', async () => {
  await usedUp();
  const tickets: (string | null)[] = [];
  const before = [1, 2].map((n) => world.chat(`before the client ${n}`));
  await world.settled(2);
  const client = new OpenAI({
    apiKey: world.gateway.keys['acme'] ?? '',
    baseURL: `${world.gateway.url}/via/openai/v1`,
    // It may come a little early where the gateway's clock waits for a busy machine.
    maxRetries: 9,
    defaultHeaders: { prefer: 'reserve, wait=0', 'x-nonce': 'client' },
    fetch: async (url, init) => {
      tickets.push(new Headers(init?.headers).get('sluice-ticket'));
      return fetch(url, init);
    },
  });
  const chat = client.chat.completions.create({
    model: 'gpt-4o',
    messages: [{ role: 'user', content: 'hello' }],
  });
  await until(() => refusals() > 0);
  const after = world.chat('after the client');
  expect((await chat).choices).toHaveLength(1);
  expect(tickets.length).toBeGreaterThan(1);
  expect(new Set(tickets)).toEqual(new Set([null]));
  expect(tally(await Promise.all([...before, after]))).toEqual({ 200: 3 });
  expect(world.model.log.slice(-2).map(({ nonce }) => nonce)).toEqual(['client', 'after the client']);
}, 120_000);

test('a batch of shopify-api-node comes back with its tickets, and the upstream refuses none of it', async () => {
  world = await startWorld({ shopLimits: 'capacity: 2, leakPerSecond: 0.34, learn: false' });
  const days = [1, 2, 3, 4, 5].map((day) => `2026-01-0${day}`);
  expect(await linesOf('reserve-shopify.mjs', days)).toHaveLength(days.length);
  expect(refusals()).toBeGreaterThan(0);
  expect(world.shop.log.map(({ decision }) => decision)).toEqual(days.map(() => 'admitted'));
}, 120_000);

/** An upstream that takes so many calls of the Messages API a minute. */
async function messagesAPI(perMinute: number): Promise<void> {
  const limits = { rpm: perMinute, itpm: 100_000, otpm: 100_000 };
  world = await startWorld({
    model: { dialect: 'anthropic', models: { 'claude-sonnet-5': limits } },
    modelLimits: `requestsPerMinute: ${perMinute}, learn: false`,
    modelMore: '',
    workspaces: {
      acme: `${highCeilings}    credentials: { openai: { header: x-api-key, value: sk-sim } }\n`,
    },
  });
}

test("a batch of the Anthropic SDK comes back by the SDK's own retries, and the upstream refuses none of it", async () => {
  await messagesAPI(20);
  const prompts = Array.from({ length: 24 }, (_, n) => `prompt ${n}`);
  const lines = await linesOf('reserve-anthropic.mjs', prompts, { SLUICE_UPSTREAM: 'openai' });
  expect(lines).toHaveLength(prompts.length);
  expect(refusals()).toBeGreaterThan(0);
  expect(world.model.log.filter(({ decision }) => decision !== 'admitted')).toEqual([]);
}, 240_000);

test("the Anthropic SDK's own retry comes back for its position, before calls that have come since", async () => {
  await messagesAPI(60);
  const left: string[] = [];
  const counts: (string | null)[] = [];
  const client = new Anthropic({
    apiKey: world.gateway.keys['acme'] ?? '',
    baseURL: `${world.gateway.url}/via/openai`,
    // The calls before it may take longer than expected on a busy machine.
    maxRetries: 9,
    fetch: async (url, init) => {
      const headers = new Headers(init?.headers);
      if (headers.get('prefer') !== null) counts.push(headers.get('x-stainless-retry-count'));
      return fetch(url, init);
    },
  });
  const send = async (name: string, prefer?: string): Promise<void> => {
    const messages = [{ role: 'user' as const, content: name }];
    const headers = prefer === undefined ? {} : { prefer };
    await client.messages.create({ model: 'claude-sonnet-5', max_tokens: 4, messages }, { headers });
    left.push(name);
  };
  await Promise.all(Array.from({ length: 60 }, (_, n) => send(`before ${n}`)));
  const early = Array.from({ length: 4 }, (_, n) => send(`early ${n}`));
  await world.settled(4);
  const reserving = send('reserving', 'reserve, wait=0');
  await until(() => refusals() > 0);
  const late = Array.from({ length: 4 }, (_, n) => send(`late ${n}`));
  await Promise.all([...early, reserving, ...late]);
  expect(counts.slice(0, 2)).toEqual(['0', '1']);
  // Two calls that leave a moment apart may be answered in either order.
  expect(
    left.slice(left.indexOf('reserving')).filter((name) => name.startsWith('late')).length,
  ).toBeGreaterThan(2);
  expect(world.model.log.filter(({ decision }) => decision !== 'admitted')).toEqual([]);
}, 120_000);

test('a worker that ends between two attempts hands the ticket on with its job', async () => {
  world = await startWorld({ shopLimits: 'capacity: 2, leakPerSecond: 0.34, learn: false' });
  const worker = spawn(process.execPath, [example('reserve-worker.mjs')], {
    env: { ...process.env, ...env(), PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  try {
    const [said] = (await once(worker.stdout.setEncoding('utf8'), 'data')) as [string];
    const url = `http://127.0.0.1:${/\d+/.exec(said)?.[0] ?? ''}`;
    /** The queue delivers the job again when the worker says so. */
    const deliver = async (job: object): Promise<number> => {
      for (let tickets = 0; ; tickets += 1) {
        const response = await fetch(url, { method: 'POST', body: JSON.stringify(job) });
        const result = (await response.json()) as { job?: { ticket: string }; afterSeconds?: number };
        if (response.status === 200) return tickets;
        expect(response.status).toBe(202);
        job = result.job ?? {};
        await new Promise((resolve) => setTimeout(resolve, (result.afterSeconds ?? 0) * 1_000));
      }
    };
    const tickets = await Promise.all([1, 2, 3, 4].map((id) => deliver({ id })));
    expect(Math.max(...tickets)).toBeGreaterThan(0);
    expect(world.shop.log.filter(({ decision }) => decision === 'admitted')).toHaveLength(4);
  } finally {
    worker.kill();
    await once(worker, 'exit');
  }
}, 120_000);
