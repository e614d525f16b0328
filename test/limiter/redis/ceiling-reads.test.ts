/** What a read of a ceiling's slots still says while it is kept: after a reload, and after others have taken slots. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { ceilingKey } from '../../../src/ids.ts';
import type { CeilingHold } from '../../../src/limiter/policy/ceiling.policy.ts';
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

const of = (perDay: number) => ({ key: ceilingKey('w'), perMinute: null, perDay });

async function forecast(perDay: number, position: number): Promise<CeilingHold | undefined> {
  const asked = one.ceilings.forecast(of(perDay), [position]);
  await redis.pass(10);
  return (await asked)[0];
}

test('the rest of a day is computed with the asking call’s limit, also from a read that was made before a reload', async () => {
  void one.ceilings.take(of(2));
  await redis.pass(10);
  const held = await forecast(2, 2);
  expect(held).toMatchObject({ heldBy: 'ceiling_day' });
  await redis.pass(100);
  expect(await forecast(5, 2)).toMatchObject({ waitMs: 0 });
  // The time to the end of the day goes on while the read is used.
  expect((await forecast(2, 2))?.waitMs).toBeLessThanOrEqual((held?.waitMs ?? 0) - 100);
});

test('after a refused slot a kept read that showed it free is not used again', async () => {
  const two = await redis.replica('two');
  expect(await forecast(1, 1)).toMatchObject({ waitMs: 0 });
  void two.ceilings.take(of(1));
  await redis.pass(10);
  const refused = one.ceilings.take(of(1));
  await redis.pass(10);
  expect(await refused).toMatchObject({ kind: 'refused' });
  expect(await forecast(1, 1)).toMatchObject({ heldBy: 'ceiling_day' });
  const closing = two.close();
  await redis.pass(1_000);
  await closing;
});
