/**
 * The upstream is asked once for a permanent refusal, which is passed on; later calls that it concerns are refused by Sluice, in the
 * words of the provider's own error, until one of them finds that the refusal is over.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import type { QuotaState } from '../../simulators/language-model/options.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { skippingClock, type SkippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { scripted } from './scripted.ts';
import { closeAll, highCeilings, nonces, startWorld } from './world.ts';
import type { Reply, World, WorldOptions } from './world.ts';

afterEach(closeAll);

async function begin(options: WorldOptions = {}): Promise<World & { readonly clock: SkippingClock }> {
  const clock = skippingClock();
  return { ...(await startWorld({ clock, ...options })), clock };
}

const quotaIs = (quota: QuotaState) => ({ quotaState: { 'org-sim': quota, proj_sim: quota } });
/** What shows that a response is the upstream's own, and final. */
const passed = (status: number) => ({
  status,
  error: null,
  shouldRetry: 'false',
  admission: expect.stringMatching(/attempts=1,/),
});
const refusedHere = (status: number, code: unknown = 'insufficient_quota') => ({
  status,
  error: 'upstream_refused',
  shouldRetry: 'false',
  json: { error: { code } },
});
const retryMs = ({ headers }: Reply): number => Number(headers.get('retry-after-ms'));

describe('an exhausted quota', () => {
  test('is asked for once: later calls are refused by Sluice, with the time of the next probe', async () => {
    const { chat, model, call } = await begin();
    model.configure(quotaIs('insufficient_quota'));
    expect(await chat(1)).toMatchObject({ ...passed(429), json: { error: { code: 'insufficient_quota' } } });
    for (let n = 2; n < 6; n += 1) {
      const reply = await chat(n);
      expect(reply).toMatchObject(refusedHere(429));
      expect(reply.json).toMatchObject({ heldBy: 'closed' });
      expect(retryMs(reply)).toBeGreaterThan(55_000);
      expect(retryMs(reply)).toBeLessThanOrEqual(60_000);
      expect(reply.headers.get('retry-after')).toBe(String(Math.ceil(retryMs(reply) / 1_000)));
    }
    // Another model and another endpoint use the same funds.
    expect(await call('/via/openai/v1/models')).toMatchObject(refusedHere(429));
    expect(model.log).toHaveLength(1);
  });

  test('ends the wait of calls that are queued for it', async () => {
    const workspaces = { acme: highCeilings, other: highCeilings };
    const { orders, occupy, settled, shop } = await begin({ workspaces });
    const letGo = await occupy();
    const waiting = [1, 2, 3, 4].map((n) => orders(n));
    await settled(4, 1);
    shop.configure({ stores: { '127.0.0.1': { state: 'locked', apps: { 'app-sim': ['shpat_sim'] } } } });
    expect(await orders(5, { workspace: 'other' })).toMatchObject({ status: 423, error: null });
    for (const reply of await Promise.all(waiting))
      expect(reply).toMatchObject(refusedHere(423, 'upstream_refused'));
    expect(nonces(shop.log)).toEqual(['occupied', '5']);
    await letGo();
  });

  test('is asked for by one call over its resends: a 503 in between does not turn its own breaker against it', async () => {
    const { chat, model, clock } = await begin();
    model.configure(quotaIs('insufficient_quota'));
    await chat(1);
    model.configure(quotaIs('ok'));
    clock.skip(60_000);
    const body = '{"error":{"code":"server_is_overloaded","message":"Overloaded"}}';
    model.fault({ kind: 'answer', status: 503, headers: { 'retry-after': '1' }, body });
    const admission = expect.stringContaining('attempts=2');
    expect(await chat(2)).toMatchObject({ status: 200, admission });
    expect((await chat(3)).status).toBe(200);
  });
});

test('a shop that refuses orders for a reason other than its bucket is asked once for orders, and as before for the rest', async () => {
  const { call, orders, shop } = await begin();
  const json = { order: { line_items: [] } };
  const post = (): Promise<Reply> => call('/via/shop/admin/api/2026-10/orders.json', { json });
  const headers = { 'x-shopify-shop-api-call-limit': '1/40' };
  shop.fault({ kind: 'answer', status: 429, headers, body: '{"errors":"Exceeded order API rate limit"}' });
  expect(await post()).toMatchObject(passed(429));
  for (let n = 0; n < 4; n += 1) expect(await post()).toMatchObject(refusedHere(429, 'upstream_refused'));
  expect((await orders(1)).status).toBe(200);
  expect(shop.log).toHaveLength(2);
});

test.each([
  ['nobody while other calls pass', (model: string) => model === 'dear', 6, false],
  ['everybody once a second call has met it and none has passed', () => true, 2, true],
])('a 402 in unknown words stops %s', async (_words, isRefused, sent, isStopped) => {
  const { ask, arrivals } = await scripted(
    ({ body }) =>
      isRefused((JSON.parse(body) as { model: string }).model) ? { status: 402, body: 'E-4711' } : {},
    { upstreams: { model: 'kind: language-model, credential: "Bearer sk"' }, workspaces: { a: '', b: '' } },
  );
  const call = async (workspace: string, model: string): Promise<string> => {
    const json = { model, messages: [{ role: 'user', content: `${workspace} ${arrivals.length}` }] };
    const { status, error } = await ask('/via/model/v1/chat/completions', { workspace, json });
    return `${status} ${error ?? 'upstream'}`;
  };
  const answers: string[] = [];
  for (let n = 0; n < 3; n += 1) answers.push(await call('a', 'dear'), await call('b', 'cheap'));
  const passed = ['402 upstream', isStopped ? '402 upstream' : '200 upstream'];
  const later = isStopped ? Array<string>(4).fill('402 upstream_refused') : [...passed, ...passed];
  expect(answers).toEqual([...passed, ...later]);
  expect(arrivals).toHaveLength(sent);
});

describe('a breaker answers with the type and the code of the provider’s own error, on every replica, and with nothing else of it:', () => {
  let redis: RedisServer;
  beforeAll(async () => (redis = await startRedis()));
  afterAll(() => redis.stop());

  const secret = 'insufficient credits, free text of the upstream';
  const said = (type: string, code?: string) => ({ error: { message: secret, type, code } });
  const quota = 'insufficient_quota';
  const unknown = ['invalid_request_error', 'upstream_refused'] as const;
  test.each<[string, number, object, string, unknown]>([
    ['OpenAI', 429, said(quota, quota), quota, quota],
    ['Anthropic', 402, { type: 'error', ...said('billing_error', undefined) }, 'billing_error', null],
    ['inside a 200', 200, said(quota, quota), quota, quota],
    ['unknown words', 402, said(`${secret} as type`, `${secret} as code`), ...unknown],
  ])('%s', async (name, status, body, type, code) => {
    const sections = `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }`;
    const upstreams = { model: 'kind: language-model' };
    const headers = { 'content-type': 'application/json' };
    const one = await scripted(() => ({ status, headers, body }), { upstreams, sections });
    const other = await one.replica();
    const call = ({ ask }: Pick<typeof one, 'ask'>) =>
      ask('/via/model/v1/chat/completions', {
        json: { model: 'm' },
        headers: { authorization: `Bearer ${name}` },
      });
    expect(await call(one)).toMatchObject({ ...passed(status), text: JSON.stringify(body) });
    await until(async () => (await call(other)).error === 'upstream_refused');
    for (const replica of [one, other]) {
      const { text, ...reply } = await call(replica);
      const detail = expect.stringMatching(/ One call asks it again in [1-6]\d s; /);
      const json = { code: 'upstream_refused', detail, error: { type, code, param: null } };
      expect(reply).toMatchObject({ status: status === 200 ? 429 : status, error: 'upstream_refused', json });
      expect(text).not.toContain(secret);
    }
  });
});
