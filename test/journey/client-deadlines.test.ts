/** A client that hangs up after four seconds, and says so: whatever happens to its call, it reads a response before. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { systemClock } from '../../src/clock.ts';
import { startWorld, type World } from './world.ts';

const timeoutMs = 4_000;
const throttledFor = (ms: number) =>
  ({
    kind: 'answer',
    status: 429,
    headers: { 'retry-after-ms': String(ms) },
    body: { error: { code: 'rate_limit_exceeded' } },
  }) as const;

let world: World;
beforeEach(async () => {
  // The client's own clock is the system's.
  world = await startWorld({ clock: systemClock, modelLimits: 'maxInFlight: 1' });
});
afterEach(() => world.close());

/** `null`: answered; else the code of the refusal that the SDK read. A time-out of the client is thrown. */
async function chat(): Promise<string | null> {
  const client = new OpenAI({
    apiKey: world.gateway.keys['acme'] ?? '',
    baseURL: `${world.gateway.url}/via/openai/v1`,
    maxRetries: 0,
  });
  const messages = [{ role: 'user' as const, content: 'hi' }];
  try {
    await client.chat.completions.create({ model: 'gpt-4o', messages }, { timeout: timeoutMs });
    return null;
  } catch (error) {
    // An `APIConnectionTimeoutError` is an `APIError`, too: it has no status.
    if (!(error instanceof OpenAI.APIError) || error.status === undefined) throw error;
    expect([error.status, Number(error.headers?.get('retry-after-ms')) > 0]).toEqual([429, true]);
    return error.code ?? '';
  }
}

test('a call that is throttled for a moment is held and answered', async () => {
  world.model.fault(throttledFor(200));
  expect(await chat()).toBeNull();
  expect(world.model.log.map(({ status }) => status)).toEqual([429, 200]);
});

test('a call that is throttled for longer than its client waits gets a refusal that names the time', async () => {
  world.model.fault(throttledFor(30_000));
  // The response that closed the bucket passes on; calls behind it are refused.
  expect(await chat()).toBe('rate_limit_exceeded');
  expect(await chat()).toBe('wait_too_long');
  expect(world.model.log).toHaveLength(1);
});

test('a call behind one that does not end is held, and refused before its client hangs up', async () => {
  world.model.fault({ kind: 'hang' });
  const leaving = new AbortController();
  const hanging = world.chat('first', { signal: leaving.signal }).catch(() => {});
  while (world.model.log.length === 0) await new Promise((resolve) => setTimeout(resolve, 2));
  expect(await chat()).toBe('wait_expired');
  expect(world.model.log).toHaveLength(1);
  leaving.abort();
  await hanging;
});
