/**
 * The upstream is asked once for a permanent refusal; later calls are refused by Sluice until one of them
 * finds that the refusal is over.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { skippingClock, type SkippingClock } from '../support/skipping-clock.ts';
import { highCeilings, startWorld, type Reply, type World, type WorldOptions } from './world.ts';

let world: World | null = null;
afterEach(async () => {
  await world?.close();
  world = null;
});

async function begin(options: WorldOptions = {}): Promise<World & { readonly clock: SkippingClock }> {
  const clock = skippingClock();
  world = await startWorld({ clock, ...options });
  return { ...world, clock };
}

const noMoney = { quotaState: { 'org-sim': 'insufficient_quota', proj_sim: 'insufficient_quota' } } as const;
const money = { quotaState: { 'org-sim': 'ok', proj_sim: 'ok' } } as const;

/** Whether the upstream or Sluice responded, and with what. */
const facts = ({ status, headers, json }: Reply): unknown => ({
  status,
  by: headers.get('sluice-error') ?? 'upstream',
  shouldRetry: headers.get('x-should-retry'),
  code: (json as { error?: { code?: unknown } } | undefined)?.error?.code,
});
const own = (status: number, code = 'insufficient_quota'): unknown => ({
  status,
  by: 'upstream_refused',
  shouldRetry: 'false',
  code,
});
const retryMs = ({ headers }: Reply): number => Number(headers.get('retry-after-ms'));

describe('an exhausted quota', () => {
  test('is asked for once: later calls are refused by Sluice, with the time of the next probe', async () => {
    const { chat, model, call } = await begin();
    model.configure(noMoney);
    expect(facts(await chat(1))).toEqual({
      status: 429,
      by: 'upstream',
      shouldRetry: 'false',
      code: 'insufficient_quota',
    });
    for (let n = 2; n < 6; n += 1) {
      const reply = await chat(n);
      expect(facts(reply)).toEqual(own(429));
      expect(reply.json).toMatchObject({ heldBy: 'closed' });
      expect(retryMs(reply)).toBeGreaterThan(55_000);
      expect(retryMs(reply)).toBeLessThanOrEqual(60_000);
      expect(reply.headers.get('retry-after')).toBe(String(Math.ceil(retryMs(reply) / 1_000)));
    }
    // Another model and another endpoint use the same funds.
    expect(facts(await call('/via/openai/v1/models'))).toEqual(own(429));
    expect(model.log).toHaveLength(1);
  });

  test('is asked for again by one of many calls when the pause is over, and then after twice the pause', async () => {
    const { chat, model, clock } = await begin();
    model.configure(noMoney);
    await chat(1);
    clock.skip(60_000);
    const replies = await Promise.all([2, 3, 4, 5, 6, 7].map((n) => chat(n)));
    expect(model.log).toHaveLength(2);
    expect(replies.filter(({ headers }) => headers.get('sluice-error') === null)).toHaveLength(1);
    expect(retryMs(await chat(8))).toBeGreaterThan(115_000);
    clock.skip(115_000);
    expect(facts(await chat(9))).toEqual(own(429));
    expect(model.log).toHaveLength(2);
  });

  test('counts as refilled for all calls with the first probe that succeeds', async () => {
    const { chat, model, clock } = await begin();
    model.configure(noMoney);
    await chat(1);
    model.configure(money);
    expect(facts(await chat(2))).toEqual(own(429));
    clock.skip(60_000);
    expect((await chat(3)).status).toBe(200);
    const replies = await Promise.all([4, 5, 6].map((n) => chat(n)));
    expect(replies.map(({ status }) => status)).toEqual([200, 200, 200]);
  });

  test('ends the wait of calls that are queued for it', async () => {
    const { orders, occupy, settled, shop } = await begin({
      workspaces: { acme: highCeilings, other: highCeilings },
    });
    const letGo = await occupy();
    const waiting = [1, 2, 3, 4].map((n) => orders(n));
    await settled(4, 1);
    shop.configure({ stores: { '127.0.0.1': { state: 'locked', apps: { 'app-sim': ['shpat_sim'] } } } });
    expect(facts(await orders(5, { workspace: 'other' }))).toMatchObject({ status: 423, by: 'upstream' });
    for (const reply of await Promise.all(waiting))
      expect(facts(reply)).toEqual(own(423, 'upstream_refused'));
    expect(shop.log.map(({ nonce }) => nonce)).toEqual(['occupied', '5']);
    await letGo();
  });

  test('concerns all calls with the same credential, and no others', async () => {
    const { chat, model } = await begin({
      model: {
        orgs: {
          'org-sim': { projects: { proj_sim: { keys: ['sk-sim'] } } },
          'org-2': { projects: { proj_2: { keys: ['sk-other'] } } },
        },
      },
      workspaces: {
        acme: highCeilings,
        same: highCeilings,
        other: `${highCeilings}    credentials: { openai: "Bearer sk-other" }\n`,
      },
    });
    model.configure(noMoney);
    await chat(1);
    expect(facts(await chat(2, { workspace: 'same' }))).toEqual(own(429));
    expect((await chat(3, { workspace: 'other' })).status).toBe(200);
  });

  test('is still known after a probe that fails for a mistake of its own', async () => {
    const { chat, model, clock } = await begin();
    model.configure(noMoney);
    await chat(1);
    model.configure(money);
    clock.skip(60_000);
    expect((await chat(2, { model: 'no-such-model' })).status).toBe(404);
    expect(retryMs(await chat(3))).toBeLessThanOrEqual(10_000);
    clock.skip(10_000);
    expect((await chat(4)).status).toBe(200);
  });

  test('is asked for by one call over its resends: a 503 in between does not turn its own breaker against it', async () => {
    const { chat, model, clock } = await begin();
    model.configure(noMoney);
    await chat(1);
    model.configure(money);
    clock.skip(60_000);
    const body = '{"error":{"code":"server_is_overloaded","message":"Overloaded"}}';
    model.fault({ kind: 'answer', status: 503, headers: { 'retry-after': '1' }, body });
    const asking = await chat(2);
    expect([asking.status, asking.headers.get('sluice-admission')]).toEqual([
      200,
      expect.stringContaining('attempts=2'),
    ]);
    expect((await chat(3)).status).toBe(200);
  });

  test('is forgotten when an operator opens the upstream', async () => {
    const { chat, model, gateway } = await begin();
    model.configure(noMoney);
    await chat(1);
    model.configure(money);
    expect(facts(await chat(2))).toEqual(own(429));
    expect(gateway.service.gateway.parts.breakers.observed('openai')).toHaveLength(1);
    const opening = await fetch(`${gateway.adminUrl}/upstreams/openai/open`, {
      method: 'POST',
      headers: { 'Sluice-Admin': 'yes' },
    });
    expect(opening.status).toBe(200);
    expect(gateway.service.gateway.parts.breakers.observed('openai')).toEqual([]);
    expect((await chat(3)).status).toBe(200);
  });
});

test('is seen in a 402 of a language-model API', async () => {
  const { chat, model } = await begin();
  const body = JSON.stringify({
    error: { message: 'Insufficient Balance', type: 'unknown_error', code: 'invalid_request_error' },
  });
  model.fault({ kind: 'answer', status: 402, headers: {}, body });
  const first = await chat(1);
  expect({
    status: first.status,
    text: first.text,
    shouldRetry: first.headers.get('x-should-retry'),
  }).toEqual({
    status: 402,
    text: body,
    shouldRetry: 'false',
  });
  expect(facts(await chat(2))).toEqual(own(402, 'invalid_request_error'));
  expect(model.log).toHaveLength(1);
});

describe('a shop', () => {
  test.each([
    ['frozen', 402],
    ['locked', 423],
    ['security', 430],
  ] as const)('that is %s is asked once, and other shops go on', async (state, status) => {
    const { call, orders, graphql, shop, clock } = await begin();
    const apps = { 'app-sim': ['shpat_sim'] };
    shop.configure({ stores: { '127.0.0.1': { state, apps } } });
    const ask = (n: number): Promise<Reply> => orders(n);
    const first = await ask(1);
    expect({ status: first.status, by: first.headers.get('sluice-error') }).toEqual({ status, by: null });
    const second = await ask(2);
    expect(facts(second)).toEqual(own(status, 'upstream_refused'));
    expect(Number(second.headers.get('retry-after'))).toBeGreaterThan(50);
    expect(facts(await graphql('{ shop { name } }'))).toEqual(own(status, 'upstream_refused'));
    expect(facts(await call('/via/shop/admin/api/2026-10/products.json'))).toEqual(
      own(status, 'upstream_refused'),
    );
    expect(shop.log).toHaveLength(1);
    shop.configure({ stores: { '127.0.0.1': { state: 'ok', apps } } });
    clock.skip(60_000);
    expect((await ask(3)).status).toBe(200);
  });

  test('that refuses orders for a reason other than its bucket is asked once for orders, and as before for the rest', async () => {
    const { call, orders, shop } = await begin();
    const post = (): Promise<Reply> =>
      call('/via/shop/admin/api/2026-10/orders.json', {
        json: { order: { line_items: [] } },
      });
    const headers = { 'x-shopify-shop-api-call-limit': '1/40' };
    shop.fault({ kind: 'answer', status: 429, headers, body: '{"errors":"Exceeded order API rate limit"}' });
    expect(facts(await post())).toMatchObject({ status: 429, by: 'upstream', shouldRetry: 'false' });
    for (let n = 0; n < 4; n += 1) expect(facts(await post())).toEqual(own(429, 'upstream_refused'));
    expect((await orders(1)).status).toBe(200);
    expect(shop.log).toHaveLength(2);
  });
});
