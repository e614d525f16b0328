/** Clients that come back for their positions: the examples as processes of their own, and what an SDK does by itself. */
import { fileURLToPath } from 'node:url';
import { afterEach, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { closeAll, highCeilings, many, startWorld, tally, type World } from '../journey/world.ts';
import { until } from '../support/until.ts';
import { run, withWorker } from './upstream.ts';

const example = (name: string): string => fileURLToPath(new URL(`../../examples/${name}`, import.meta.url));

let world: World;
afterEach(closeAll);

/** The quota of a minute is used up: from now on a call goes as soon as one has drained. */
async function usedUpChats(perMinute: number): Promise<void> {
  world = await startWorld({
    model: { models: { 'gpt-4o': { rpm: perMinute } } },
    modelLimits: `requestsPerMinute: ${perMinute}, learn: false`,
  });
  const replies = await Promise.all(many(perMinute, (n) => world.chat(`before ${n}`)));
  expect(tally(replies)).toEqual({ 200: perMinute });
}
/** An upstream that takes so many calls of the Messages API a minute. */
async function messagesAPI(perMinute: number): Promise<void> {
  const limits = { rpm: perMinute, itpm: 100_000, otpm: 100_000 };
  const credentials = '    credentials: { openai: { header: x-api-key, value: sk-sim } }\n';
  world = await startWorld({
    model: { dialect: 'anthropic', models: { 'claude-sonnet-5': limits } },
    modelLimits: `requestsPerMinute: ${perMinute}, learn: false`,
    workspaces: { acme: highCeilings + credentials },
  });
}
async function slowShop(): Promise<void> {
  world = await startWorld({ shopLimits: 'capacity: 2, leakPerSecond: 0.34, learn: false' });
}

const apiKey = (): string => world.gateway.keys['acme'] ?? '';
const refusals = (): number => world.gateway.logs.filter((line) => line.includes('"wait_too_long"')).length;
/** Runs an example to its end; the lines that it prints. */
const linesOf = async (name: string, args: readonly string[], more?: Record<string, string>) =>
  (await run(world, process.execPath, [example(name), ...args], more)).trimEnd().split('\n');

const prompts = (count: number): string[] => many(count, (n) => `prompt ${n}`);
const days = [1, 2, 3, 4, 5].map((day) => `2026-01-0${day}`);
// Quotas slower than a busy machine starts a process: were they faster, everything would have drained by then.
test.each<[string, string[], () => Promise<void>, Record<string, string>]>([
  ['reserve-openai.mjs', prompts(7), () => usedUpChats(20), {}],
  ['reserve-shopify.mjs', days, slowShop, {}],
  ['reserve-anthropic.mjs', prompts(24), () => messagesAPI(20), { SLUICE_UPSTREAM: 'openai' }],
])(
  '%s comes back as often as it has to, and the upstream refuses none of its batch',
  async (name, args, begin, more) => {
    await begin();
    expect(await linesOf(name, args, more)).toHaveLength(args.length);
    expect(refusals()).toBeGreaterThan(0);
    const sent = [...world.model.log, ...world.shop.log];
    expect(sent.filter(({ decision }) => decision !== 'admitted')).toEqual([]);
  },
);

test('an SDK that repeats its call when it is told to needs no ticket, and goes before whoever came after it', async () => {
  await usedUpChats(60);
  const tickets: (string | null)[] = [];
  const before = [1, 2].map((n) => world.chat(`before the client ${n}`));
  await world.settled(2);
  const client = new OpenAI({
    apiKey: apiKey(),
    baseURL: `${world.gateway.url}/via/openai/v1`,
    // It may come a little early where the gateway's clock waits for a busy machine.
    maxRetries: 9,
    defaultHeaders: { prefer: 'reserve, wait=0', 'x-nonce': 'client' },
    fetch: async (url, init) => {
      tickets.push(new Headers(init?.headers).get('sluice-ticket'));
      return fetch(url, init);
    },
  });
  const messages = [{ role: 'user' as const, content: 'hello' }];
  const chat = client.chat.completions.create({ model: 'gpt-4o', messages });
  await until(() => refusals() > 0);
  const after = world.chat('after the client');
  expect((await chat).choices).toHaveLength(1);
  expect(tickets.length).toBeGreaterThan(1);
  expect(new Set(tickets)).toEqual(new Set([null]));
  expect(tally(await Promise.all([...before, after]))).toEqual({ 200: 3 });
  expect(world.model.log.slice(-2).map(({ nonce }) => nonce)).toEqual(['client', 'after the client']);
});

test('a worker that ends between two attempts hands the ticket on with its job', async () => {
  await slowShop();
  await withWorker(world, example('reserve-worker.mjs'), async (url) => {
    /** The queue delivers the job again when the worker says so. */
    const deliver = async (id: number): Promise<number> => {
      let job: object = { id };
      for (let tickets = 0; ; tickets += 1) {
        const response = await fetch(url, { method: 'POST', body: JSON.stringify(job) });
        const result = (await response.json()) as { job?: { ticket: string }; afterSeconds?: number };
        if (response.status === 200) return tickets;
        expect(response.status).toBe(202);
        job = result.job ?? {};
        await new Promise((resolve) => setTimeout(resolve, (result.afterSeconds ?? 0) * 1_000));
      }
    };
    expect(Math.max(...(await Promise.all([1, 2, 3, 4].map(deliver))))).toBeGreaterThan(0);
    expect(world.shop.log.filter(({ decision }) => decision === 'admitted')).toHaveLength(4);
  });
});
