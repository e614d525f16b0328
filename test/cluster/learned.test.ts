/** What one replica learns from the responses of an upstream, the others use for their next call. */
import { expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { manualClock } from '../support/manual-clock.ts';
import { spokenWorld } from '../support/spoken.ts';
import { until } from '../support/until.ts';
import { withMethods } from '../support/with-methods.ts';
import { model, onRedis } from './fleet.ts';

const { open, started, redis, fleet, upstream, languageModel } = onRedis();
const roomy = { requestsPerMinute: { openai: 100_000 }, requestsPerDay: { openai: 1_000_000 } };

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

/** The buckets of all leases from now on, and which replicas have heard of joined buckets, then and by now. */
function watchLeases() {
  const left: { readonly bucket: string; readonly isJoinKnown: boolean }[] = [];
  const knowing = new Set<AdmissionQueue>();
  const { enter, moveToJoinedBuckets } = AdmissionQueue.prototype;
  AdmissionQueue.prototype.moveToJoinedBuckets = function noteJoin() {
    knowing.add(this);
    moveToJoinedBuckets.call(this);
  };
  AdmissionQueue.prototype.enter = async function noteLeases(...entering) {
    const ticket = await enter.apply(this, entering);
    return withMethods(ticket, {
      whenGranted: async () => {
        const lease = await ticket.whenGranted();
        left.push({ bucket: lease.grant.bucket, isJoinKnown: knowing.has(this) });
        return lease;
      },
    });
  };
  open.push(() => Object.assign(AdmissionQueue.prototype, { enter, moveToJoinedBuckets }));
  return { left, knowing };
}

test('calls with two keys of one project go on in one bucket over both replicas, and only what left before the join was known is refused', async () => {
  const { simulator, url } = await languageModel(120);
  const { left, knowing } = watchLeases();
  const all = await fleet({
    upstreams: model(url, {}),
    workspaces: { acme: roomy, beta: { ...roomy, credentials: { openai: 'Bearer sk-two' } } },
  });
  const both = (): readonly Promise<number>[] =>
    ['acme', 'beta'].map(async (workspace, replica) => {
      const body = { model: 'gpt-4o', messages: [{ role: 'user', content: 'hello' }], max_tokens: 8 };
      return (await all.call(replica, 'openai/v1/chat/completions', { workspace, body })).status;
    });
  // All but 20 of the upstream's minute are used already: the other calls wait for two a second, however slowly all are sent.
  simulator.consume(100, { dimension: 'rpm' });
  const statuses = await Promise.all(Array.from({ length: 16 }, both).flat());
  // A machine so slow that nothing had to wait has sent all of them too early: these two come when the project is known for certain.
  await until(() => knowing.size === 2);
  statuses.push(...(await Promise.all(both())));
  expect(new Set(statuses)).toEqual(new Set([200]));
  expect(new Set(simulator.log.map(({ key }) => key))).toEqual(new Set(['sk-sim', 'sk-two']));
  const joined = new Set(left.filter(({ isJoinKnown }) => isJoinKnown).map(({ bucket }) => bucket));
  expect(joined.size).toBe(1);
  const former = left.filter(({ bucket }) => !joined.has(bucket));
  // The bucket that stays granted what its own responses showed to be left. Whatever the other bucket let go meanwhile, which is
  // its probes, is not in these responses: each such call leaves no room for one that has been granted.
  expect(former.length).toBeGreaterThan(0);
  const refused = simulator.log.filter(({ decision }) => decision === 'throttled');
  expect(refused.length).toBeLessThanOrEqual(former.length);
});

test('a refusal that concerns the credential stops every bucket of it at every replica', async () => {
  const speaks = {
    bucketBy: ['credential', 'path:/v1/{*}'],
    throttledBy: [{ status: 429, field: 'x-all', scope: 'credential' as const }],
  };
  const shared = { replicas: 3, redis: redis().url };
  const world = await spokenWorld({ speaks, refusesBy: 0, retryAfter: true, ...shared });
  world.simulator.closeFor(3_000);
  const first = world.call('/v1/a');
  const buckets = () => world.services[0]?.gateway.parts.pressure.buckets() ?? [];
  await until(() => buckets().some(({ snapshot }) => snapshot.closedMs > 0));
  const others = ['/v1/b', '/v1/c', '/v1/d', '/v1/a'].map((path) => world.call(path));
  const statuses = (await Promise.all([first, ...others])).map(({ status }) => status);
  expect(statuses).toEqual([200, 200, 200, 200, 200]);
  expect(world.throttles()).toBe(1);
  await world.close();
});
