/** A permanent refusal over three replicas: the upstream is asked once, and one probe ends the refusal for all. */
import { expect, test } from '@jest/globals';
import { skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { kinds, model, onRedis, type Fleet } from './fleet.ts';

const { fleet, languageModel } = onRedis();
const quota = (state: 'insufficient_quota' | 'ok') => ({ quotaState: { 'org-sim': state, proj_sim: state } });

async function refusing() {
  const { simulator, url } = await languageModel();
  simulator.configure(quota('insufficient_quota'));
  const clock = skippingClock();
  const all = await fleet({ upstreams: model(url), replicas: 3, clock });
  const chats = (...replicas: readonly number[]) => Promise.all(replicas.map((n) => all.chat(n)));
  return { simulator, clock, all, chats };
}

const shown = (all: Fleet, replicas: number): Promise<void> =>
  until(async () => (await all.metric('sluice_breaker_open{upstream="openai"}')) === replicas);

test('a permanent refusal costs at most 2 of 100 calls in 10 s, and one probe closes the breaker when the quota is back', async () => {
  const { simulator, clock, all, chats } = await refusing();
  const replies = [];
  for (let n = 0; n < 100; n += 1) {
    replies.push(await all.chat(n));
    // The second call may come to a replica that has not heard of the first response, the third does not: 100 ms are long for that.
    if (n === 1) await shown(all, 3);
    clock.skip(100);
  }
  expect(simulator.log.length).toBeLessThanOrEqual(2);
  expect(kinds(replies)).toEqual(['429', '429 upstream_refused']);

  simulator.configure(quota('ok'));
  clock.skip(60_000);
  const before = simulator.log.length;
  // Of six calls at once, one is the probe; calls that come after its response are sent.
  const round = await chats(0, 1, 2, 3, 4, 5);
  const succeeded = round.filter(({ status }) => status === 200).length;
  expect(succeeded).toBeGreaterThanOrEqual(1);
  expect(simulator.log.length - before).toBe(succeeded);
  await shown(all, 0);
  expect(kinds(await chats(0, 1, 2, 3, 4, 5))).toEqual(['200']);
});

test('only one of three replicas probes an open breaker, and all of them learn that the probe was refused', async () => {
  const { simulator, clock, all, chats } = await refusing();
  await all.chat(0);
  await shown(all, 3);
  clock.skip(60_000);
  await chats(0, 1, 2, 3, 4, 5, 6, 7, 8);
  expect(simulator.log).toHaveLength(2);
  const retryAfterMs = async (n: number) => Number((await all.chat(n)).headers.get('retry-after-ms'));
  for (const n of [0, 1, 2]) await until(async () => (await retryAfterMs(n)) > 100_000);
  expect(simulator.log).toHaveLength(2);
});

test('a replica that starts while a breaker is open sends one call that it concerns, and one that starts after its end sends all', async () => {
  const { simulator, clock, all, chats } = await refusing();
  await all.chat(0);
  await all.join();
  await all.chat(3);
  expect(kinds(await chats(3, 3, 3))).toEqual(['429 upstream_refused']);
  expect(simulator.log).toHaveLength(2);
  simulator.configure(quota('ok'));
  clock.skip(60_000);
  expect((await all.chat(0)).status).toBe(200);
  await all.join();
  expect(kinds(await chats(4, 4, 4))).toEqual(['200']);
});
