/**
 * Limits of calls that come to several replicas: one ceiling, one order, one call in flight, what one of them learns or is refused,
 * positions that one of them keeps, and what each lets through while Redis is away.
 */
import { expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import type { AllActivity } from '../../src/activity/activity.ts';
import { clean, serve } from '../cli/started.ts';
import { freePort } from '../support/free-port.ts';
import { pause } from '../support/redis-fleet.ts';
import { admittedIn, monitorRedis } from '../support/redis-monitor.ts';
import { startRedis } from '../support/redis.ts';
import { skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { kinds, model, onRedis, plenty, read, type Reply } from './fleet.ts';

const { open, started, redis, fleet, upstream, languageModel } = onRedis();

test('two replicas together keep one commerce call of a workspace in flight, in the order of arrival', async () => {
  const shop = createCommerceSimulator({
    latency: { minMs: 20, maxMs: 40 },
    stores: { '127.0.0.1': { apps: { 'app-sim': ['shpat_sim'] } } },
  });
  const credential = { header: 'x-shopify-access-token', value: 'shpat_sim' };
  const settings = { kind: 'commerce', origins: [await started(shop)], credential };
  const all = await fleet({ upstreams: { shop: { ...settings, limits: { requestsPerMinute: 1_000 } } } });
  const order = (n: number): Promise<Reply> =>
    all.call(n, 'shop/admin/api/2026-10/orders.json', { headers: { 'x-nonce': `${n}`, prefer: 'wait=60' } });
  // Both replicas get to know Redis' clock: of many round trips one is short. Positions are wrong by half of the shortest.
  for (let n = 0; n < 20; n += 2) await Promise.all([order(n), order(n + 1)]);
  const before = shop.log.length;
  const { lines, stop } = await monitorRedis(redis().port);
  open.push(stop);
  // To the replicas in turn, each when Redis has entered the one before, however long that takes.
  const replies: Promise<Reply>[] = [];
  for (let n = 0; n < 30; n += 1) {
    replies.push(order(n));
    await until(() => admittedIn(lines).length > n);
  }
  expect(kinds(await Promise.all(replies))).toEqual(['200']);
  const entries = shop.log.slice(before);
  expect(entries.map(({ decision, inFlight }) => `${decision} ${inFlight.scope}`)).toEqual(
    Array(30).fill('admitted 1'),
  );
  expect(entries.map(({ nonce }) => Number(nonce))).toEqual([...Array(30).keys()]);
});

test('two replicas share a ceiling, and refuse calls at once for which it has no slot in time', async () => {
  const { simulator, url } = await languageModel();
  const all = await fleet({ upstreams: model(url, { ...plenty, requestsPerMinute: 20 }) });
  const startedAt = performance.now();
  const chats = Array.from({ length: 40 }, async (_, n) => {
    const reply = await all.chat(n, { prefer: 'wait=20' });
    return { ...reply, tookMs: performance.now() - startedAt };
  });
  const refused = (await Promise.all(chats)).filter(({ status }) => status === 429);
  expect([refused.length, simulator.log.length]).toEqual([20, 20]);
  // On a machine that stands still a call is refused late, and then its code is that of a call that has waited.
  for (const { code } of refused) expect(['wait_too_long', 'wait_expired']).toContain(code);
  expect(Math.max(...refused.map(({ tookMs }) => tookMs))).toBeLessThan(20_000);
});

/** A replica that starts without its Redis, and that Redis. `redis`: further keys of the section. */
async function neverReached(redis: object) {
  const port = await freePort();
  const { url } = await languageModel();
  const all = await fleet({
    upstreams: model(url, { ...plenty, requestsPerMinute: 8 }),
    redis: { url: `redis://127.0.0.1:${port}`, ...redis },
    replicas: 1,
  });
  const call = (): Promise<Reply> => all.chat(0, { prefer: 'wait=1' });
  const readyz = (): Promise<Reply> => all.admin(0, '/readyz');
  return {
    logs: all.logs,
    call,
    readyz,
    isReady: async () => (await readyz()).text === 'ok\n',
    /** How many of so many calls succeed. */
    async succeeded(calls: number): Promise<number> {
      let done = 0;
      for (let n = 0; n < calls; n += 1) if ((await call()).status === 200) done += 1;
      return done;
    },
    answer: async () => (JSON.parse((await all.admin(0, '/activity')).text) as AllActivity).answer,
    async redisComes() {
      const server = await startRedis({ port });
      open.push(() => server.stop());
      return server;
    },
  };
}

test('a replica that has never reached its Redis is not ready and takes its part of the replicas that are stated', async () => {
  const one = await neverReached({ replicas: 4, startSeconds: 3600 });
  const { status, text } = await one.readyz();
  expect(status).toBe(503);
  expect(text).toMatch(
    /^starting\nRedis is away \(refused\): .*\nRedis has never been reached: until it is, this replica takes 1\/4 of every limit\.\n$/,
  );
  expect(await one.succeeded(4)).toBe(2);
  await one.redisComes();
  await until(one.isReady);
  let done = 2;
  await until(async () => (done += await one.succeeded(1)) === 8);
  expect(await one.succeeded(8)).toBe(0);
});

test.each([
  ['deny', 'No: Redis is away and Sluice refuses all calls.', 'Your redis.whenDown: deny.'],
  [
    'local',
    expect.any(String),
    'This replica has never reached Redis, and redis.replicas, which tells its share, is not set.',
  ],
])(
  'it refuses calls where nobody states the replicas, with whenDown: %s',
  async (whenDown, sentence, heldBy) => {
    const one = await neverReached({ whenDown });
    expect(await one.call()).toMatchObject({ status: 503, code: 'limiter_unavailable' });
    const next = [{ text: 'Why is Redis away?', command: 'curl http://127.0.0.1:9090/readyz' }];
    expect(await one.answer()).toMatchObject({ sentence, heldBy, next });
    expect(one.logs.join('')).toMatch(/"calls":"refused".*"message":"Redis has never been reached"/);
    const server = await one.redisComes();
    await until(one.isReady);
    await until(async () => (await one.call()).status === 200);
    await server.stop();
    await until(async () => !(await one.isReady()));
    // From now on it knows its share.
    expect((await one.call()).status).toBe(whenDown === 'deny' ? 503 : 200);
    const { status, text } = await one.readyz();
    expect(status).toBe(200);
    expect(text).not.toContain('never been reached');
  },
);

test('a permanent refusal costs at most 2 of 100 calls in 10 s, and one probe closes the breaker when the quota is back', async () => {
  const { simulator, url } = await languageModel();
  const quotaIs = (state: 'insufficient_quota' | 'ok') =>
    simulator.configure({ quotaState: { 'org-sim': state, proj_sim: state } });
  quotaIs('insufficient_quota');
  const clock = skippingClock();
  const all = await fleet({ upstreams: model(url), replicas: 3, clock });
  const sixAtOnce = () => Promise.all([0, 1, 2, 3, 4, 5].map((n) => all.chat(n)));
  const shownBy = (replicas: number): Promise<void> =>
    until(async () => (await all.metric('sluice_breaker_open{upstream="openai"}')) === replicas);
  const replies = [];
  for (let n = 0; n < 100; n += 1) {
    replies.push(await all.chat(n));
    // The second call may come to a replica that has not heard of the first response, the third does not: 100 ms are long for that.
    if (n === 1) await shownBy(3);
    clock.skip(100);
  }
  expect(simulator.log.length).toBeLessThanOrEqual(2);
  expect(kinds(replies)).toEqual(['429', '429 upstream_refused']);

  quotaIs('ok');
  clock.skip(60_000);
  const before = simulator.log.length;
  // Of six calls at once, one is the probe; calls that come after its response are sent.
  const round = await sixAtOnce();
  const succeeded = round.filter(({ status }) => status === 200).length;
  expect(succeeded).toBeGreaterThanOrEqual(1);
  expect(simulator.log.length - before).toBe(succeeded);
  await shownBy(0);
  expect(kinds(await sixAtOnce())).toEqual(['200']);
});

test('two keys of one project share one bucket over both replicas once their responses have named it', async () => {
  const { simulator, url } = await languageModel();
  const roomy = { requestsPerMinute: { openai: 100_000 }, requestsPerDay: { openai: 1_000_000 } };
  const all = await fleet({
    upstreams: model(url, {}),
    workspaces: { acme: roomy, beta: { ...roomy, credentials: { openai: 'Bearer sk-two' } } },
  });
  const leaving = new AbortController();
  const chat = (replica: number, workspace: string): Promise<Reply> => {
    const body = { model: 'gpt-4o', messages: [{ role: 'user', content: 'hello' }], max_tokens: 8 };
    return all.call(replica, 'openai/v1/chat/completions', { workspace, body, signal: leaving.signal });
  };
  const both = () => Promise.all([chat(0, 'acme'), chat(1, 'beta')]);
  const busy = (replica: number) => all.buckets(replica).filter(({ inFlight }) => inFlight > 0);
  const inOne = async (): Promise<boolean> => {
    simulator.fault({ kind: 'slow', ms: 300, times: 2 });
    const held = both();
    await until(() => [0, 1].every((replica) => busy(replica).length > 0));
    const buckets = new Set([0, 1].flatMap((replica) => busy(replica).map(({ bucket }) => bucket)));
    expect(kinds(await held)).toEqual(['200']);
    return buckets.size === 1;
  };
  expect(kinds(await both())).toEqual(['200']);
  // One replica hears of the join a moment after the other.
  await until(inOne);
  expect(new Set(simulator.log.map(({ key }) => key))).toEqual(new Set(['sk-sim', 'sk-two']));
});

test('a refusal that concerns the credential stops every bucket of it at every replica', async () => {
  const speaks = {
    bucketBy: ['credential', 'path:/v1/{*}'],
    throttledBy: [{ status: 429, field: 'x-all', scope: 'credential' }],
  };
  let [refused, openAt] = [0, Infinity];
  const { url } = await upstream((response) => {
    if (openAt === Infinity) openAt = performance.now() + 3_000;
    if (performance.now() >= openAt) return void response.end('ok');
    refused += 1;
    response.writeHead(429, { 'x-all': 'true', 'retry-after': '3' }).end();
  });
  const all = await fleet({ upstreams: { api: { origins: [url], speaks } }, replicas: 3 });
  const first = all.call(0, 'api/v1/a');
  await until(() => all.buckets(0).some(({ closedMs }) => closedMs > 0));
  const others = ['b', 'c', 'd', 'a'].map((name, n) => all.call(n + 1, `api/v1/${name}`));
  expect([kinds(await Promise.all([first, ...others])), refused]).toEqual([['200'], 1]);
});

test('a ticket of a replica that was killed is good at another one, before calls that came later and waited', async () => {
  const arrivals: string[] = [];
  const { url } = await upstream((response, request) => {
    arrivals.push((request.url ?? '').slice(1));
    response.end('served');
  });
  // Four calls at once, then one every two seconds.
  const speaks = { windows: [{ requests: 4, seconds: 8, kind: 'leaky' }] };
  const all = await fleet({ upstreams: { api: { origins: [url], speaks, reserveSeconds: 60 } } });
  const call = (replica: number, name: string, headers: Record<string, string>): Promise<Reply> =>
    all.call(replica, `api/${name}`, { headers });
  // A third replica is a process of its own.
  const killed = await serve(all.text());
  open.push(clean);
  const first = await Promise.all([0, 1, 2, 3].map((n) => call(0, `first${n}`, { prefer: 'wait=30' })));
  expect(first.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
  const asked = { 'sluice-key': all.keys['acme'] ?? '', prefer: 'reserve, wait=0' };
  const given = await read(await fetch(`${killed.url}/via/api/refused`, { headers: asked }));
  const ticket = given.headers.get('sluice-ticket') ?? '';
  expect([given.status, ticket]).toEqual([429, expect.stringMatching(/./)]);
  const x = call(0, 'x', { prefer: 'wait=120' });
  killed.signal('SIGKILL');
  await killed.ended;
  await pause(Number(given.headers.get('retry-after-ms')));
  const back = await call(1, 'back', { prefer: 'wait=30', 'sluice-ticket': ticket });
  expect([back.status, (await x).status]).toEqual([200, 200]);
  expect(arrivals.slice(4)).toEqual(['back', 'x']);
});
