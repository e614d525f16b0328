/** The order in which calls of one lane leave when replicas return to Redis at different times. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { admission } from '../../support/admission.ts';
import { VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

/** Fills the bucket; after that one call leaves every 3 s. */
const limit = 20;
const options = {
  setting: { meters: [{ meter: 'requests' as const, limit, windowMs: 60_000 }], learn: true, probe: 0 },
  maxWaitMs: 600_000,
  maxQueued: 1_000,
};

let redis: VirtualRedis;
let one: VirtualReplica;
let two: VirtualReplica;
/** The calls of all replicas, in the order of their grants. */
let left: string[];
beforeEach(async () => {
  redis = new VirtualRedis();
  one = await redis.replica('one');
  two = await redis.replica('two');
  left = [];
  await pass(1_500);
  for (let n = 0; n < limit; n += 1) await enter(n % 2 === 0 ? one : two, `fill${n}`);
  await pass(1_500);
  left = [];
});
afterEach(async () => {
  const closing = Promise.all([one.close(), two.close()]);
  await redis.pass(1_000);
  await closing;
});

/** Lets time pass in steps in which the bucket makes at most one grant, so that grants are noted in their order. */
async function pass(ms: number): Promise<void> {
  const until = redis.clock.monotonic() + ms;
  while (redis.clock.monotonic() < until) {
    await redis.pass(Math.min(10, until - redis.clock.monotonic()));
    for (const { grants } of [one, two]) left.push(...grants.splice(0).map(({ ticket }) => ticket));
  }
}

async function enter({ limiter, grants }: VirtualReplica, id: string): Promise<void> {
  const asking = limiter.admit(admission(id, { ...options, arrivedAt: redis.clock.monotonic() }));
  void asking.then((reply) => reply.kind === 'granted' && grants.push(reply.grant));
  await pass(20);
}

/**
 * Both replicas lose Redis. `one` returns to it first, `two` `lateMs` milliseconds later. Calls come to both replicas during the
 * absence, in between and afterwards. Resolves, when all calls have left, with those that had left before `two` was back.
 */
async function returning(lateMs: number): Promise<readonly string[]> {
  redis.isUnavailable = true;
  await pass(2_500);
  expect([one.modes.at(-1), two.modes.at(-1)]).toEqual(['local', 'local']);
  for (const n of [0, 1, 2]) {
    await enter(two, `a${2 * n}`);
    await enter(one, `a${2 * n + 1}`);
  }
  redis.cut.add('two');
  redis.isUnavailable = false;
  while (one.modes.at(-1) !== 'redis') await pass(10);
  await enter(one, 'b0');
  await enter(two, 'b1');
  await enter(one, 'b2');
  await pass(lateMs);
  redis.cut.delete('two');
  while (two.modes.at(-1) !== 'redis') await pass(10);
  const before = [...left];
  await enter(one, 'c0');
  await enter(two, 'c1');
  await pass(60_000);
  return before;
}

const inOrder = ['a0', 'a1', 'a2', 'a3', 'a4', 'a5', 'b0', 'b1', 'b2', 'c0', 'c1'];

test.each([0, 300, 700])(
  'calls that wait, and calls that arrive meanwhile, leave in the order of their arrival where the second replica returns %s ms later',
  async (lateMs) => {
    await returning(lateMs);
    expect(left).toEqual(inOrder);
  },
);

test('the calls of a replica that returns after 1.3 s get the positions of their arrivals among the calls that still wait', async () => {
  const before = await returning(5_000);
  // The others wait no longer than 1.3 s for a replica, because it may never return. Until then it sends by its own share.
  expect(before).toEqual(['a1', 'a3', 'a0']);
  expect(left).toEqual([...before, ...inOrder.filter((id) => !before.includes(id))]);
});
