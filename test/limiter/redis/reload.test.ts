/** What a reload means for calls that are on their way to Redis when it comes. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { ceilingKey } from '../../../src/ids.ts';
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

test('newcomers that wait for the way to Redis go by the settings of the reload that overtook them', async () => {
  const { bucket, lane, ...before } = admission('of before', { limit: 5 });
  const { setting } = admission('of after', { limit: 1 });
  // The first is under way; the others go with the reload, behind it.
  const asked = ['first', 'second', 'third'].map((name) => one.limiter.admit(admission(name, { limit: 5 })));
  const { weight, maxInFlight, perMinute, ceiling, maxQueued } = before;
  const changed = { lane, weight, maxInFlight, perMinute, ceiling, maxQueued };
  const reloading = one.limiter.reconfigure({ bucket, setting, lanes: [changed] });
  await redis.pass(100);
  await reloading;
  const replies = await Promise.all(asked);
  expect(replies.map(({ kind }) => kind)).toEqual(['granted', 'queued', 'queued']);
});

test('what is left of a day is told by the limit of who asks, also from a read that was made before the reload', async () => {
  const { ceilings } = one;
  const of = (perDay: number) => ({ key: ceilingKey('w'), perMinute: null, perDay });
  const ask = async (perDay: number) => {
    const asked = ceilings.forecast(of(perDay), [2]);
    await redis.pass(10);
    return (await asked)[0];
  };
  void ceilings.take(of(2));
  await redis.pass(10);
  const held = await ask(2);
  expect(held).toMatchObject({ heldBy: 'ceiling_day' });
  await redis.pass(100);
  expect(await ask(5)).toMatchObject({ waitMs: 0 });
  // The time to the end of the day goes on while the read is used.
  expect((await ask(2))?.waitMs).toBeLessThanOrEqual((held?.waitMs ?? 0) - 100);
});
