/** `mode: observe` from outside: what clients, metrics, the log, `/activity` and the page get of calls that limits do not hold. */
import { afterEach, expect, test } from '@jest/globals';
import { startWorld, tally, type Reply, type World } from './world.ts';
import { until } from '../support/until.ts';

let world: World;
afterEach(() => world.close());

const observed = {
  modelMore: '    mode: observe\n',
  modelLimits: 'requestsPerMinute: 6, probe: 100',
  model: { models: { 'gpt-4o': { rpm: 6 } } },
} as const;
const wouldOf = ({ headers }: Reply): string =>
  /would=(\w+), would-wait=\d+$/.exec(headers.get('sluice-admission') ?? '')?.[1] ?? 'nothing';
const wouldWaitOf = ({ headers }: Reply): number =>
  Number(/would-wait=(\d+)$/.exec(headers.get('sluice-admission') ?? '')?.[1]);

/** In tens of seconds: when each call would have left. */
const fatesOf = (all: readonly (readonly [would: string, waitMs: number])[]): string[] =>
  all.map(([would, ms]) => (would === 'refuse' ? would : `${Math.round(ms / 10_000)}`)).toSorted();
/** Of 20 calls: 6 at once, then one each 10 s, up to the default wait of 75 s. */
const fates = '0 0 0 0 0 0 1 2 3 4 5 6 7 refuse refuse refuse refuse refuse refuse refuse'.split(' ');

const burst = (calls: number): Promise<Reply[]> =>
  Promise.all(Array.from({ length: calls }, (_, at) => world.chat(at)));

const metric = async (name: string): Promise<number> => {
  const text = await (await fetch(`${world.gateway.adminUrl}/metrics`)).text();
  return text
    .split('\n')
    .filter((line) => line.startsWith(name))
    .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
};

test('every call is sent at once, the refusals of the upstream are passed on untouched, and each says what limits would have done', async () => {
  world = await startWorld(observed);
  const replies = await burst(20);
  // 6 pass, and the simulator refuses the others.
  expect(world.model.log).toHaveLength(20);
  const counts = tally(replies);
  expect(counts[200]).toBeGreaterThanOrEqual(6);
  expect(counts[429]).toBe(20 - (counts[200] ?? 0));
  for (const { status, headers } of replies) {
    expect(headers.get('sluice-admission')).toMatch(/^waited=\d, attempts=1, absorbed=0, would=/);
    expect([headers.get('sluice-error'), headers.get('ratelimit'), headers.get('x-should-retry')]).toEqual([
      null,
      null,
      null,
    ]);
    if (status === 429) expect(headers.get('retry-after')).not.toBeNull();
  }
  expect(fatesOf(replies.map((reply) => [wouldOf(reply), wouldWaitOf(reply)]))).toEqual(fates);
});

test('metrics, log line, activity and page tell what is observed', async () => {
  world = await startWorld({ ...observed, shopLimits: 'maxInFlight: 1' });
  await burst(20);
  const { gateway } = world;
  expect(await metric('sluice_would_refuse_total{')).toBe(7);
  // The last of the six would have left a moment later.
  await until(async () => (await metric('sluice_would_wait_seconds_count{upstream="openai"}')) === 6);
  expect(await metric('sluice_shed_total{')).toBe(0);
  expect(await metric('sluice_queue_depth{')).toBe(0);
  const lines = gateway.logs
    .map((line) => JSON.parse(line))
    .filter(({ message }) => message === 'call ended');
  expect(fatesOf(lines.map(({ would, wouldWaitMs }) => [would, wouldWaitMs]))).toEqual(fates);
  const activity = await world.call('/activity');
  const { upstreams } = activity.json as {
    upstreams: { upstream: string; answer: { text: string }; waiting: number }[];
  };
  expect(upstreams.map(({ upstream, answer }) => [upstream, answer.text.split(':')[0]])).toEqual([
    ['openai', 'Observing'],
    ['shop', 'Not known yet'],
  ]);
  expect(upstreams.map(({ waiting }) => waiting)).toEqual([0, 0]);
  const all = (await (await fetch(`${gateway.adminUrl}/activity`)).json()) as {
    answer: { sentence: string };
    upstreams: { upstream: string; condition: { kind: string } }[];
  };
  expect(all.upstreams.map(({ condition }) => condition.kind)).toEqual(['observing', 'taking']);
});

test('the log corrects the forecast of a call that a later one would have gone before', async () => {
  world = await startWorld({
    shopMore: '    mode: observe\n',
    shopLimits: 'requestsPerMinute: none, maxInFlight: none, capacity: 1, leakPerSecond: 1, learn: false',
  });
  await world.orders('first');
  const replies = [
    await world.orders('second'),
    await world.orders('urgent', { headers: { priority: 'u=0' } }),
  ];
  expect(replies.map(wouldOf)).toEqual(['wait', 'wait']);
  const linesOf = (wanted: string) =>
    world.gateway.logs.map((line) => JSON.parse(line)).filter(({ message }) => message === wanted);
  await until(() => Promise.resolve(linesOf('forecast missed').length > 0));
  const [second] = replies;
  const [missed] = linesOf('forecast missed');
  expect(missed.requestId).toBe(second?.headers.get('sluice-request-id'));
  const line = linesOf('call ended').find(({ requestId }) => requestId === missed.requestId);
  expect([missed.workspace, missed.upstream, missed.would]).toEqual([line.workspace, 'shop', 'wait']);
  expect(missed.wouldWaitMs).toBeGreaterThan(line.wouldWaitMs + 500);
});

test('a serialized shop is sent to at once, and what would have waited in its line is told', async () => {
  world = await startWorld({
    shopMore: '    mode: observe\n',
    shop: { latency: { minMs: 300, maxMs: 300 } },
  });
  await world.orders('first');
  const replies = await Promise.all([1, 2, 3, 4].map((at) => world.orders(at)));
  expect(tally(replies)).toEqual({ 200: 4 });
  expect(Math.max(...world.shop.log.map(({ inFlight }) => inFlight.scope))).toBe(4);
  expect(replies.map(wouldOf).toSorted()).toEqual(['send', 'wait', 'wait', 'wait']);
});

test('a breaker still answers calls that the upstream refuses for good', async () => {
  world = await startWorld(observed);
  world.model.configure({ quotaState: { 'org-sim': 'insufficient_quota', proj_sim: 'insufficient_quota' } });
  const replies = [await world.chat(1), await world.chat(2)];
  expect(replies.map(({ headers }) => headers.get('sluice-error'))).toEqual([null, 'upstream_refused']);
  expect(world.model.log).toHaveLength(1);
});

test('a pause still holds calls', async () => {
  world = await startWorld(observed);
  const { gateway } = world;
  const post = (path: string): Promise<Response> =>
    fetch(`${gateway.adminUrl}/upstreams/openai/${path}`, {
      method: 'POST',
      headers: { 'sluice-admin': 'yes' },
    });
  await world.chat('first');
  await post('pause?seconds=600');
  const refused = await world.chat('refused');
  expect([refused.status, refused.headers.get('sluice-error')]).toEqual([429, 'wait_too_long']);
  const held = world.chat('held', { headers: { prefer: 'wait=600' } });
  await until(() => Promise.resolve(world.gateway.service.telemetry.live()[0]?.waiting === 1));
  await post('resume');
  const { status, headers } = await held;
  expect(status).toBe(200);
  expect(headers.get('sluice-admission')).toMatch(/^waited=[1-9]/);
});

test('a reload turns enforcement on and off for calls that wait', async () => {
  world = await startWorld({
    modelLimits: 'requestsPerMinute: 1',
    model: { models: { 'gpt-4o': { rpm: 1 } } },
  });
  const { gateway } = world;
  expect(wouldOf(await world.chat('first'))).toBe('nothing');
  const waiting = [world.chat(1)];
  await world.settled(1);
  await gateway.reload(
    gateway.yaml.replace('    kind: language-model', '    mode: observe\n    kind: language-model'),
  );
  const [released] = await Promise.all(waiting);
  if (released === undefined) throw new Error('no response');
  expect([released.status, released.headers.get('sluice-error'), wouldOf(released)]).toEqual([
    429,
    null,
    'wait',
  ]);
  expect(wouldOf(await world.chat(2))).toBe('refuse');
  await gateway.reload(gateway.yaml);
  const enforced = await world.chat(3, { headers: { prefer: 'wait=0' } });
  expect([enforced.status, wouldOf(enforced)]).toEqual([429, 'nothing']);
});
