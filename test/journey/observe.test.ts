/** `mode: observe` from outside: what clients, metrics and the log get of calls that limits do not hold. */
import { afterEach, expect, test } from '@jest/globals';
import { until } from '../support/until.ts';
import { closeAll, many, metric, startWorld, tally } from './world.ts';
import type { Reply, World } from './world.ts';

afterEach(closeAll);

const observed = {
  modelMore: '    mode: observe\n',
  modelLimits: 'requestsPerMinute: 6, probe: 100',
  model: { models: { 'gpt-4o': { rpm: 6 } } },
} as const;
const wouldOf = ({ admission }: Reply): string =>
  /would=(\w+), would-wait=\d+$/.exec(admission)?.[1] ?? 'nothing';
const linesOf = ({ gateway }: World, wanted: string) =>
  gateway.logs.map((line) => JSON.parse(line)).filter(({ message }) => message === wanted);

/** In tens of seconds: when each call would have left. */
const fatesOf = (all: readonly (readonly [would: string, waitMs: number])[]): string[] =>
  all.map(([would, ms]) => (would === 'refuse' ? would : `${Math.round(ms / 10_000)}`)).toSorted();
/** Of 20 calls: 6 at once, then one each 10 s, up to the default wait of 75 s. */
const fates = '0 0 0 0 0 0 1 2 3 4 5 6 7 refuse refuse refuse refuse refuse refuse refuse'.split(' ');

test('every call is sent at once, refusals are passed on untouched, and response, log and metrics say what limits would have done', async () => {
  const world = await startWorld(observed);
  const { model, gateway, chat } = world;
  const replies = await Promise.all(many(20, (at) => chat(at)));
  // 6 pass, and the simulator refuses the others.
  expect(model.log).toHaveLength(20);
  const { 200: passed = 0, 429: refused } = tally(replies);
  expect(passed).toBeGreaterThanOrEqual(6);
  expect(refused).toBe(20 - passed);
  for (const { status, headers, error, shouldRetry, admission } of replies) {
    expect(admission).toMatch(/^waited=\d, attempts=1, absorbed=0, would=/);
    expect([error, headers.get('ratelimit'), shouldRetry]).toEqual([null, null, null]);
    if (status === 429) expect(headers.get('retry-after')).not.toBeNull();
  }
  const waits = replies.map(({ admission }) => Number(/would-wait=(\d+)$/.exec(admission)?.[1]));
  expect(fatesOf(replies.map((reply, at) => [wouldOf(reply), waits[at] ?? NaN]))).toEqual(fates);
  const lines = linesOf(world, 'call ended');
  expect(fatesOf(lines.map(({ would, wouldWaitMs }) => [would, wouldWaitMs]))).toEqual(fates);
  // The last of the six would have left a moment later.
  await until(
    async () => (await metric(gateway, 'sluice_would_wait_seconds_count{upstream="openai"}')) === 6,
  );
  const series = ['sluice_would_refuse_total{', 'sluice_shed_total{', 'sluice_queue_depth{'];
  expect(await Promise.all(series.map((name) => metric(gateway, name)))).toEqual([7, 0, 0]);
});

test('a breaker still answers calls that the upstream refuses for good', async () => {
  const { chat, model } = await startWorld(observed);
  model.configure({ quotaState: { 'org-sim': 'insufficient_quota', proj_sim: 'insufficient_quota' } });
  expect([(await chat(1)).error, (await chat(2)).error]).toEqual([null, 'upstream_refused']);
  expect(model.log).toHaveLength(1);
});
