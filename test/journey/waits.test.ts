/** How long a call may wait, that it is refused at once where that is not enough, and what it is told of its wait. */
import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import { parseDictionary } from 'structured-headers';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { until } from '../support/until.ts';
import { bucketsOf, closeAll, logged, many, nonces } from './world.ts';
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
