import { afterEach, describe, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { highCeilings, startWorld, tally, type Reply, type World, type WorldOptions } from './world.ts';

let world: World;
const begin = async (options: WorldOptions): Promise<World> => (world = await startWorld(options));
afterEach(() => world.close());

/** Loosely: on a loaded machine a response may take longer than the 50 ms that are promised, but never a wait. */
const atOnceMs = 1_000;
const acme = (more: string): Record<string, string> => ({ acme: more });

/** The fields and the document of a refusal by Sluice, in the forms that SDKs read. */
function refusalOf({ status, headers, json }: Reply): unknown {
  const { code, error } = json as { code: string; error: { code: string; type: string } };
  expect(headers.get('sluice-error')).toBe(code);
  expect(headers.get('content-type')).toBe('application/problem+json');
  expect(error).toMatchObject({ code, type: 'rate_limit_error' });
  return {
    status,
    code,
    seconds: Number(headers.get('retry-after')),
    shouldRetry: headers.get('x-should-retry'),
    policy: headers.get('ratelimit-policy'),
    rateLimit: headers.get('ratelimit'),
  };
}

describe('a call that cannot leave within its wait', () => {
  test('is refused at once by its ceiling, with the true time and no retry beyond 59 s', async () => {
    const { chat, model, clock } = await begin({
      workspaces: acme('    requestsPerMinute: { openai: 2 }\n'),
    });
    const startedAt = clock.monotonic();
    expect(tally(await Promise.all([chat(1), chat(2)]))).toEqual({ 200: 2 });
    const refused = await chat(3, { headers: { prefer: 'wait=45' } });
    expect(refused.tookMs).toBeLessThan(atOnceMs);
    const { seconds } = refusalOf(refused) as { seconds: number };
    // A minute after the two, of which the calls themselves took a moment.
    expect(seconds).toBeGreaterThanOrEqual(60 - (clock.monotonic() - startedAt) / 1_000);
    expect(seconds).toBeLessThanOrEqual(61);
    expect(refusalOf(refused)).toEqual({
      status: 429,
      code: 'wait_too_long',
      seconds,
      shouldRetry: 'false',
      policy: '"workspace";q=2;w=60',
      rateLimit: expect.stringMatching(`^"workspace";r=0;t=(${seconds - 1}|${seconds})$`),
    });
    expect(Number(refused.headers.get('retry-after-ms'))).toBeGreaterThan((seconds - 2) * 1_000);
    expect(model.log).toHaveLength(2);
  });

  test('is refused at once by its bucket, and may be retried when the time is less than a minute', async () => {
    const { chat, model } = await begin({
      model: { models: { 'gpt-4o': { rpm: 10 } } },
      modelLimits: 'requestsPerMinute: 10',
      workspaces: acme(highCeilings),
    });
    for (let at = 0; at < 10; at += 1) await chat(at);
    const refused = await chat(10, { headers: { prefer: 'wait=1' } });
    expect(refused.tookMs).toBeLessThan(atOnceMs);
    const { seconds } = refusalOf(refused) as { seconds: number };
    expect(refusalOf(refused)).toMatchObject({ status: 429, code: 'wait_too_long', shouldRetry: null });
    expect(seconds).toBeGreaterThanOrEqual(1);
    expect(seconds).toBeLessThanOrEqual(6);
    expect(tally(model.log)).toEqual({ 200: 10 });
  });

  test('is refused at once when the day is used up, with the hours that are left of it', async () => {
    const day = '    requestsPerMinute: { openai: 1000 }\n    requestsPerDay: { openai: 2 }\n';
    const { chat, model } = await begin({ workspaces: acme(day) });
    await chat(1);
    await chat(2);
    const refused = await chat(3);
    expect(refused.tookMs).toBeLessThan(atOnceMs);
    const { seconds } = refusalOf(refused) as { seconds: number };
    expect(refusalOf(refused)).toMatchObject({
      status: 429,
      code: 'day_quota_exhausted',
      shouldRetry: 'false',
    });
    expect(seconds).toBeGreaterThan(60);
    expect(seconds).toBeLessThanOrEqual(86_400);
    expect(model.log).toHaveLength(2);
  });

  test('leaves at once when it would not have to wait at all', async () => {
    const { orders, shop, occupy } = await begin({});
    const now = { headers: { prefer: 'wait=0' } };
    for (let at = 0; at < 5; at += 1) expect((await orders(at, now)).status).toBe(200);
    const release = await occupy();
    const refused = await orders(5, now);
    expect(refused.status).toBe(429);
    expect(refused.tookMs).toBeLessThan(atOnceMs);
    await release();
    expect(shop.log.filter(({ nonce }) => nonce === '5')).toEqual([]);
  });

  test('is refused at once when its lane is full, and other lanes are not affected', async () => {
    const { orders, shop, settled, occupy } = await begin({ shopLimits: 'maxQueued: 3' });
    await orders(0);
    const release = await occupy();
    const waiting = [orders(2), orders(3), orders(4)];
    await settled(3);
    const refused = await orders(5);
    expect(refused.tookMs).toBeLessThan(atOnceMs);
    expect(refusalOf(refused)).toMatchObject({ status: 429, code: 'queue_full', shouldRetry: null });
    await release();
    expect(tally(await Promise.all(waiting))).toEqual({ 200: 3 });
    expect(shop.log.map(({ nonce }) => nonce).toSorted()).toEqual(['0', '2', '3', '4', 'occupied']);
  });

  test('is refused at once while the upstream has closed its bucket for longer than that', async () => {
    const { chat, model } = await begin({});
    model.fault({ kind: 'answer', status: 429, headers: { 'retry-after': '80' }, body: rateLimited });
    const first = await chat(1);
    expect(first.status).toBe(429);
    const refused = await chat(2);
    expect(refused.tookMs).toBeLessThan(atOnceMs);
    expect(refusalOf(refused)).toMatchObject({ status: 429, code: 'wait_too_long' });
    expect(model.log).toHaveLength(1);
  });
});

describe('Prefer: wait', () => {
  test('lets a call wait longer than the default until it is sent', async () => {
    const { chat, model } = await begin({
      clock: fastClock(60),
      workspaces: acme('    requestsPerMinute: { openai: 2 }\n'),
    });
    await Promise.all([chat(1), chat(2)]);
    const held = await chat(3, { headers: { prefer: 'wait=90' } });
    expect(held.status).toBe(200);
    const [one, , three] = model.log.map(({ arrivedT }) => arrivedT);
    // Sockets do not run faster: 100 ms on the way are six seconds here.
    expect((three ?? 0) - (one ?? 0)).toBeGreaterThanOrEqual(54_000);
  });

  test('is bounded by the operator’s maximum', async () => {
    const { chat } = await begin({
      workspaces: acme('    requestsPerMinute: { openai: 1 }\n'),
      modelLimits: 'maxWaitCeilingSeconds: 50',
    });
    await chat(1);
    expect((await chat(2, { headers: { prefer: 'wait=600' } })).json).toMatchObject({
      code: 'wait_too_long',
    });
  });
});

test('a waiting call that becomes too late is refused at that moment, not at its deadline', async () => {
  const { orders, shop } = await begin({});
  await orders(0);
  shop.fault({ kind: 'slow', ms: 1_000 });
  const first = orders(1);
  while (shop.log.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  shop.fault({
    kind: 'answer',
    status: 429,
    headers: { 'retry-after': '80.0' },
    body: { errors: 'Exceeded' },
  });
  const rest = [orders(2), orders(3), orders(4)];
  const replies = await Promise.all([first, ...rest]);
  expect(tally(replies)).toEqual({ 200: 1, 429: 3 });
  expect(replies.slice(2).map(({ json }) => json)).toEqual([
    expect.objectContaining({ code: 'wait_expired' }),
    expect.objectContaining({ code: 'wait_expired' }),
  ]);
  expect(shop.log).toHaveLength(3);
});

const rateLimited = {
  error: { message: 'Rate limit reached', type: 'requests', code: 'rate_limit_exceeded' },
};
