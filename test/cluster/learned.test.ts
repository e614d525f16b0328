/** What one replica learns from the responses of an upstream, the others use for their next call. */
import { expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { manualClock } from '../support/manual-clock.ts';
import { until } from '../support/until.ts';
import { kinds, model, onRedis, type Reply } from './fleet.ts';

const { started, fleet, upstream, languageModel } = onRedis();
test('an error behind the content of a stream keeps every replica from sending until the time that it states', async () => {
  const arrivals: number[] = [];
  let refusedAt = Infinity;
  const { url } = await upstream((response) => {
    arrivals.push(performance.now());
    response.setHeader('content-type', 'text/event-stream');
    response.write('data: {"choices":[{"delta":{"content":"a"}}]}\n\n');
    if (arrivals.length > 1) return void response.end('data: [DONE]\n\n');
    const message =
      'Rate limit reached for m in organization org-A on requests per min (RPM): Limit 60, Used 60, Requested 1. Please try again in 2s.';
    const error = { type: 'requests', code: 'rate_limit_exceeded', message };
    refusedAt = performance.now();
    response.end(`data: ${JSON.stringify({ error })}\n\n`);
  });
  const all = await fleet({ upstreams: model(url), replicas: 3 });
  const ask = async (replica: number): Promise<number> => {
    const body = { model: 'm', stream: true, messages: [] };
    const headers = { prefer: 'wait=30' };
    return (await all.call(replica, 'openai/v1/chat/completions', { body, headers })).status;
  };
  expect(await ask(2)).toBe(200);
  await until(() => all.buckets(2).some(({ closedMs }) => closedMs > 0));
  // The next call of that replica reaches Redis behind the closing: once it waits there, the others can know the closing.
  const third = ask(2);
  await until(() => all.waiting() > 0);
  expect(await Promise.all([ask(0), ask(1), third])).toEqual([200, 200, 200]);
  expect(arrivals).toHaveLength(4);
  expect(Math.min(...arrivals.slice(1)) - refusedAt).toBeGreaterThanOrEqual(2_000);
});

test('the cost of a GraphQL query is known to every replica when one replica has learned it', async () => {
  const clock = manualClock();
  const shop = createCommerceSimulator({
    clock,
    latency: { minMs: 0, maxMs: 0 },
    stores: {
      'acme.myshopify.com': {
        plan: { limit: 40, leak: 2, max: 2000, restore: 1000 },
        apps: { 'app-sim': ['shpat_sim'] },
      },
    },
  });
  const credential = { header: 'x-shopify-access-token', value: 'shpat_sim' };
  const settings = { kind: 'commerce', origins: [await started(shop)], credential };
  const all = await fleet({ upstreams: { shop: { ...settings, limits: { maxInFlight: 'none' } } } });
  /** The shop answers once all of the calls are in flight. */
  const answered = async (replica: number, calls: number): Promise<readonly string[]> => {
    const body = { query: '# sim: requested=400 actual=400 ms=800\n{ shop { id } }' };
    const path = 'shop/admin/api/2026-10/graphql.json';
    const replies = Array.from({ length: calls }, () => all.call(replica, path, { body }));
    await until(() => clock.waiting === calls);
    clock.advance(800);
    return (await Promise.all(replies)).map(({ status, text }) => `${status} ${text.includes('THROTTLED')}`);
  };
  expect(await answered(0, 1)).toEqual(['200 false']);
  expect(await answered(1, 3)).toEqual(Array(3).fill('200 false'));
  // No call has to learn the cost again: the three are in flight together.
  expect(shop.log.map(({ inFlight }) => inFlight.scope)).toEqual([1, 1, 2, 3]);
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
