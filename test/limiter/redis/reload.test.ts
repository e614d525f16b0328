/** What a reload means for calls that are on their way to Redis when it comes. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { admission } from '../../support/admission.ts';
import { VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

let redis: VirtualRedis;
let one: VirtualReplica;
beforeEach(async () => {
  redis = new VirtualRedis();
  one = await redis.replica('one');
});
afterEach(async () => {
  const closing = one.close();
  await redis.pass(1_000);
  await closing;
});

test('arriving calls whose admission is not yet on its way to Redis use the settings of a reload that comes meanwhile', async () => {
  const { bucket, lane, ...before } = admission('of before', { limit: 5 });
  const { setting } = admission('of after', { limit: 1 });
  // The first is under way; the others go with the reload, behind it.
  const asked = ['first', 'second', 'third'].map((name) => one.limiter.admit(admission(name, { limit: 5 })));
  const { weight, maxInFlight, perMinute, ceilingTag, maxQueued } = before;
  const changed = { lane, weight, maxInFlight, perMinute, ceilingTag, maxQueued };
  const reloading = one.limiter.reconfigure({ bucket, setting, lanes: [changed] });
  await redis.pass(100);
  await reloading;
  const replies = await Promise.all(asked);
  expect(replies.map(({ kind }) => kind)).toEqual(['granted', 'queued', 'queued']);
});

test('arriving calls of a workspace that the reload removed bring no former limit back', async () => {
  const { bucket } = admission('of before', { limit: 1 });
  const { setting } = admission('of after', { limit: 5 });
  const options = { limit: 1, lane: 'removed' };
  const asked = ['first', 'second', 'third'].map((name) => one.limiter.admit(admission(name, options)));
  const reloading = one.limiter.reconfigure({ bucket, setting, lanes: [] });
  await redis.pass(100);
  await reloading;
  const replies = await Promise.all(asked);
  expect(replies.map(({ kind }) => kind)).toEqual(['granted', 'granted', 'granted']);
});
