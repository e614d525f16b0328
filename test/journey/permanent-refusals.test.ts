/**
 * The upstream is asked once for a permanent refusal, which is passed on; later calls that it concerns are refused by Sluice, in the
 * words of the provider's own error, until one of them finds that the refusal is over. An operator pauses, resumes and reopens an upstream
 * through the admin port, over all replicas.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import type { QuotaState } from '../../simulators/language-model/options.ts';
import { ran } from '../support/command.ts';
import { type RedisServer, startRedis } from '../support/redis.ts';
import { type SkippingClock, skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { type Answer, type Scripted, scripted, type ScriptedOptions } from './scripted.ts';
import {
  adminPost,
  closeAll,
  highCeilings,
  metric,
  nonces,
  type Reply,
  startWorld,
  type World,
  type WorldOptions,
} from './world.ts';

afterEach(closeAll);

let redis: RedisServer;
beforeAll(async () => (redis = await startRedis()));
afterAll(() => redis.stop());
const onRedis = (): ScriptedOptions => ({
  sections: `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }`,
});

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
    const upstreams = { model: 'kind: language-model' };
    const headers = { 'content-type': 'application/json' };
    const one = await scripted(() => ({ status, headers, body }), { upstreams, ...onRedis() });
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

/** One upstream, of which no other test has the name, that answers `first` to its first call. */
function start(
  name: string,
  options: ScriptedOptions = {},
  first: Answer = {},
  kind = 'generic',
): Promise<Scripted> {
  const upstreams = { [name]: `kind: ${kind}, credential: "Bearer x", maxWaitSeconds: 100` };
  return scripted(({ n }) => (n === 1 ? first : {}), { upstreams, ...options });
}
const call = ({ ask }: Pick<Scripted, 'ask'>, name: string, prefer = 'wait=100') =>
  ask(`/via/${name}/x`, { headers: { prefer } });
const closing: Answer = { status: 429, headers: { 'retry-after': '86000' } };
const admin = ({ gateway }: Scripted, path: string) => adminPost(gateway, `/upstreams/${path}`);

test('the commands of the terminal carry the token, and the log says what was done but no token', async () => {
  const token = 'canary-token-of-the-operator';
  const api = await start('guarded', { server: `  adminToken: ${token}\n` });
  const { logs, adminUrl } = api.gateway;
  const command = ['pause', '--upstream', 'guarded', '--seconds', '60', '--admin', adminUrl];
  const said = [];
  for (const env of [{}, { SLUICE_ADMIN_TOKEN: 'another-token-of-somebody' }, { SLUICE_ADMIN_TOKEN: token }])
    said.push(await ran(command, { env }));
  expect(said.map(({ code }) => code)).toEqual([1, 1, 0]);
  expect(said[0]?.err).toContain('SLUICE_ADMIN_TOKEN');
  const lines = logs.filter((line) => line.includes('a command was given at the admin port'));
  expect(lines.map((line) => JSON.parse(line) as unknown)).toMatchObject([
    { level: 'info', verb: 'pause', upstream: 'guarded', seconds: 60, result: 'done' },
  ]);
  expect(logs.join('') + JSON.stringify(said)).not.toContain(token);
});

test('a pause holds calls, refuses those that cannot wait for its end, and resume lets them go', async () => {
  const api = await start('paused');
  const isPaused = () => metric(api.gateway, 'sluice_upstream_paused{upstream="paused"}');
  expect(await isPaused()).toBe(0);
  expect((await admin(api, 'paused/pause?seconds=60')).status).toBe(200);
  expect(await isPaused()).toBe(1);
  const refused = await call(api, 'paused', 'wait=2');
  expect(refused).toMatchObject({ status: 429, error: 'wait_too_long', json: { heldBy: 'paused' } });
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(5);
  const held = call(api, 'paused');
  await until(() => api.gateway.service.telemetry.live().some(({ waiting }) => waiting === 1));
  expect(api.arrivals).toHaveLength(0);
  for (const result of ['done', 'not_paused'])
    expect(await (await admin(api, 'paused/resume')).json()).toEqual({ result });
  expect(await held).toMatchObject({
    status: 200,
    admission: expect.stringMatching(/held=\(paused;ms=\d+\)/),
  });
  expect(api.arrivals).toHaveLength(1);
});

test('open reopens a bucket that a long Retry-After has closed', async () => {
  const api = await start('closed', {}, closing);
  expect((await call(api, 'closed')).status).toBe(429);
  expect(await call(api, 'closed')).toMatchObject({ error: 'wait_too_long', json: { heldBy: 'closed' } });
  expect((await admin(api, 'closed/open')).status).toBe(200);
  expect([(await call(api, 'closed')).status, api.arrivals.length]).toEqual([200, 2]);
});

describe('several replicas', () => {
  test('forget a breaker when an operator opens the upstream at one of them', async () => {
    const one = await start('unpaid', onRedis(), { status: 402, body: 'no credit' }, 'commerce');
    const two = await one.replica();
    expect((await call(one, 'unpaid')).status).toBe(402);
    expect((await call(one, 'unpaid')).error).toBe('upstream_refused');
    const open = () => two.service.gateway.parts.breakers.observed('unpaid').length;
    await until(() => open() > 0);
    expect((await admin(one, 'unpaid/open')).status).toBe(200);
    await until(() => open() === 0);
    expect([(await call(one, 'unpaid')).error, (await call(two, 'unpaid')).error]).toEqual([null, null]);
  });

  test('share a pause, also with one that begins later', async () => {
    const one = await start('shared', onRedis());
    const two = await one.replica();
    await admin(one, 'shared/pause?seconds=60');
    await until(async () => (await call(two, 'shared', 'wait=0')).status === 429);
    const later = await call(await one.replica(), 'shared', 'wait=1');
    expect(later).toMatchObject({ error: 'wait_too_long', json: { heldBy: 'paused' } });
  });
});
