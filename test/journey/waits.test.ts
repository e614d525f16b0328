/** How long a call may wait, that it is refused at once where that is not enough, and what it is told of its wait. */
import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import { parseDictionary } from 'structured-headers';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { until } from '../support/until.ts';
import { bucketsOf, closeAll, highCeilings, logged, many, nonces, refuseOnce } from './world.ts';
import { startWorld, tally, type Reply, type World, type WorldOptions } from './world.ts';

afterEach(closeAll);

const waits = (seconds: number) => ({ headers: { prefer: `wait=${seconds}` } });
/** A workspace with a ceiling. */
const acme = (calls: number) => ({ acme: `    requestsPerMinute: { openai: ${calls} }\n` });

/** What a refusal by Sluice says in the forms that SDKs read, and that it came without a wait. */
function expectAtOnce(
  { status, error, headers, json, tookMs, admission }: Reply,
  code: string,
  heldBy: string,
): number {
  expect([status, error, headers.get('content-type')]).toEqual([429, code, 'application/problem+json']);
  expect(json).toMatchObject({ code, heldBy, error: { code, type: 'rate_limit_error' } });
  expect(admission).toMatch(/^waited=\d+,/);
  // Loosely: on a loaded machine a response may take longer than the 50 ms that are promised, but never a wait.
  expect(tookMs).toBeLessThan(1_000);
  return Number(headers.get('retry-after'));
}

describe('a call that cannot leave within its wait is refused at once', () => {
  test('by its ceiling, with the true time and no retry beyond 59 s', async () => {
    const { chat, model, clock } = await startWorld({ workspaces: acme(2) });
    const startedAt = clock.monotonic();
    expect(tally(await Promise.all([chat(1), chat(2)]))).toEqual({ 200: 2 });
    const refused = await chat(3, waits(45));
    const seconds = expectAtOnce(refused, 'wait_too_long', 'ceiling_minute');
    // A minute after the two, of which the calls themselves took a moment.
    expect(seconds).toBeGreaterThanOrEqual(60 - (clock.monotonic() - startedAt) / 1_000);
    expect(seconds).toBeLessThanOrEqual(61);
    expect([refused.shouldRetry, refused.headers.get('ratelimit-policy')]).toEqual([
      'false',
      '"workspace";q=2;w=60',
    ]);
    expect(refused.headers.get('ratelimit')).toMatch(
      RegExp(`^"workspace";r=0;t=(${seconds - 1}|${seconds})$`),
    );
    expect(Number(refused.headers.get('retry-after-ms'))).toBeGreaterThan((seconds - 2) * 1_000);
    expect(model.log).toHaveLength(2);
  });

  test('by its bucket, and may be retried when the time is less than a minute', async () => {
    const { chat, model } = await startWorld({
      model: { models: { 'gpt-4o': { rpm: 10 } } },
      modelLimits: 'requestsPerMinute: 10',
      workspaces: { acme: highCeilings },
    });
    for (let at = 0; at < 10; at += 1) await chat(at);
    const refused = await chat(10, waits(1));
    const seconds = expectAtOnce(refused, 'wait_too_long', 'requests');
    expect(refused.shouldRetry).toBeNull();
    expect(seconds).toBeGreaterThanOrEqual(1);
    expect(seconds).toBeLessThanOrEqual(6);
    expect(tally(model.log)).toEqual({ 200: 10 });
  });

  test('where it would not wait at all: it leaves, or is refused', async () => {
    const { orders, shop, occupy } = await startWorld();
    for (let at = 0; at < 5; at += 1) expect((await orders(at, waits(0))).status).toBe(200);
    const release = await occupy();
    expectAtOnce(await orders(5, waits(0)), 'wait_too_long', 'serialized');
    await release();
    expect(nonces(shop.log)).not.toContain('5');
  });

  test('by a full lane', async () => {
    const { orders, settled, occupy, shop } = await startWorld({ shopLimits: 'maxQueued: 3' });
    const release = await occupy();
    const waiting = [2, 3, 4].map((at) => orders(at));
    await settled(3);
    const refused = await orders(5);
    expectAtOnce(refused, 'queue_full', 'queue');
    expect(refused.shouldRetry).toBeNull();
    await release();
    expect(tally(await Promise.all(waiting))).toEqual({ 200: 3 });
    expect(nonces(shop.log).toSorted()).toEqual(['2', '3', '4', 'occupied']);
  });
});

test('a waiting call that becomes too late is refused at that moment, not at its deadline', async () => {
  const { orders, shop } = await startWorld();
  shop.fault({ kind: 'slow', ms: 1_000 });
  const first = orders(1);
  await until(() => shop.log.length === 1);
  const body = { errors: 'Exceeded' };
  shop.fault({ kind: 'answer', status: 429, headers: { 'retry-after': '80.0' }, body });
  const replies = await Promise.all([first, orders(2), orders(3), orders(4)]);
  const errors = replies.map(({ error }) => error);
  expect(errors.toSorted((a, b) => String(a).localeCompare(String(b)))).toEqual([
    null,
    null,
    'wait_expired',
    'wait_expired',
  ]);
  expect(tally(replies)).toEqual({ 200: 1, 429: 3 });
  expect(shop.log).toHaveLength(2);
});

describe('by a clock that only the test moves,', () => {
  const stepMs = 100;
  let clock: ManualClock;
  let world: World;
  async function begin(options: WorldOptions): Promise<World> {
    clock = manualClock();
    return (world = await startWorld({ ...options, clock }));
  }
  /** Moves the clock while nothing is in flight, until all calls are answered. @throws Error after two minutes of it. */
  async function driven<T>(calls: readonly Promise<T>[]): Promise<readonly T[]> {
    let open = calls.length;
    for (const call of calls) void call.finally(() => (open -= 1)).catch(() => {});
    const stopAt = clock.monotonic() + 120_000;
    while (open > 0) {
      if (clock.monotonic() > stopAt) throw new Error(`${open} calls are unanswered after two minutes`);
      await new Promise((resolve) => setTimeout(resolve, 1));
      await until(() => bucketsOf(world.gateway).every(({ inFlight }) => inFlight === 0), 1);
      clock.advance(stepMs);
    }
    return Promise.all(calls);
  }

  test('70 calls at once on a ceiling of 40 a minute succeed by default for a language model', async () => {
    const { chat, model } = await begin({ workspaces: acme(40) });
    expect(tally(await driven(many(70, (at) => chat(at))))).toEqual({ 200: 70 });
    const minute = (model.log[0]?.arrivedT ?? NaN) + 60_000;
    expect(model.log.filter(({ arrivedT }) => arrivedT < minute)).toHaveLength(40);
    expect(model.log).toHaveLength(70);
  });

  test.each<[string, Record<string, string>, 'served' | 'refused']>([
    ['of a client that states no time-out', {}, 'served'],
    ['of a client with a time-out of 66 s', { 'x-stainless-timeout': '66' }, 'served'],

    ['of a client with a time-out of 64 s', { 'x-stainless-timeout': '64' }, 'refused'],
  ])('a call that has to wait for 60 s, %s, is %s or refused at once', async (_words, headers, fate) => {
    const { chat } = await begin({ workspaces: acme(1) });
    await driven([chat(1)]);
    const sentAt = clock.monotonic();
    const [reply] = await driven([chat(2, { headers })]);
    const tookMs = clock.monotonic() - sentAt;
    if (fate === 'served') {
      expect(reply?.status).toBe(200);
      expect(tookMs).toBeGreaterThanOrEqual(60_000 - stepMs);
    } else {
      expect([reply?.error, reply?.admission]).toEqual([
        'wait_too_long',
        expect.stringMatching(/^waited=0,/),
      ]);
      expect(tookMs).toBeLessThanOrEqual(10 * stepMs);
    }
  });

  test.each([
    [66, 200],
    [64, 429],
  ])(
    'a client with a time-out of %d s gets %d when its body has taken 20 s of them',
    async (timeout, status) => {
      const { chat, gateway } = await begin({ workspaces: acme(1) });
      await driven([chat(1)]);
      const sending = request(`${gateway.url}/via/openai/v1/chat/completions`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${gateway.keys['acme'] ?? ''}`,
          'content-type': 'application/json',
          expect: '100-continue',
          'x-stainless-timeout': String(timeout),
        },
      });
      const answered = once(sending, 'response') as Promise<[IncomingMessage]>;
      sending.flushHeaders();
      await once(sending, 'continue');
      clock.advance(20_000);
      sending.end(JSON.stringify({ model: 'gpt-4o', messages: [{ role: 'user', content: 'x' }] }));
      await driven([answered]);
      expect((await answered)[0].resume().statusCode).toBe(status);
    },
  );
});

describe('a call says in Sluice-Admission and in its log line', () => {
  /** `waited`, `ahead`, and the milliseconds of each cause in `held`. */
  function told({ admission }: Reply) {
    const field = parseDictionary(admission);
    const [members] = field.get('held') ?? [];
    const causes = Array.isArray(members) ? members : [];
    const held = causes.map(([cause, of]) => [String(cause), Number(of.get('ms'))] as const);
    return { waited: Number(field.get('waited')?.[0]), ahead: field.get('ahead')?.[0], held };
  }

  test('that its closed bucket kept it from the upstream, and for how long', async () => {
    const { chat, model, gateway } = await startWorld();
    refuseOnce(model, { 'retry-after': '1' });
    const reply = await chat(1);
    const { waited, held } = told(reply);
    const [cause, ms = NaN] = held[0] ?? [];
    expect(cause).toBe('closed');
    expect(ms).toBeGreaterThan(900);
    expect(ms).toBeLessThanOrEqual(waited);
    const { heldMs = {}, waitedMs } = (await logged(gateway, reply)) as {
      heldMs?: Record<string, number>;
      waitedMs: number;
    };
    expect(Object.keys(heldMs)).toEqual(held.map(([name]) => name));
    // The log has tenths, the field whole milliseconds: both are rounded.
    expect(Math.abs((heldMs['closed'] ?? NaN) - ms)).toBeLessThan(1);
    expect(waitedMs).toBeGreaterThan(900);
  });

  test('that another one of its workspace was in flight, also in the refusal at the end of its wait', async () => {
    const { occupy, orders, settled, gateway } = await startWorld();
    const release = await occupy();
    const late = orders(1, waits(2));
    await settled(1, 1);
    const sent = orders(2);
    const refused = await late;
    await release();
    const reply = await sent;
    expect([reply.status, refused.error]).toEqual([200, 'wait_expired']);
    for (const each of [reply, refused]) {
      expect(told(each).held[0]).toEqual(['serialized', expect.any(Number)]);
      expect(await logged(gateway, each)).toMatchObject({ heldMs: { serialized: expect.any(Number) } });
    }
  });

  test('how many of its workspace stood before it when it came', async () => {
    const { behindOccupied } = await startWorld();
    const { replies } = await behindOccupied([1, 2, 3]);
    expect(replies.map((reply) => told(reply).ahead)).toEqual([0, 1, 2]);
  });
});
