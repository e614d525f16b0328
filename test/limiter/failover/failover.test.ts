/** Replicas whose Redis comes back, with its data or without: their limit holds. What a replica does alone stands in `over-log/faults.test.ts`. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { ceilingKey } from '../../../src/ids.ts';
import { admission } from '../../support/admission.ts';
import { VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';

let redis: VirtualRedis;
let one: VirtualReplica;
let two: VirtualReplica;
beforeEach(async () => {
  redis = new VirtualRedis();
  one = await redis.replica('one');
  two = await redis.replica('two');
});
afterEach(async () => {
  for (const each of [one, two]) await closed(each);
});

async function closed(replica: VirtualReplica): Promise<void> {
  const closing = replica.close();
  await redis.pass(1_000);
  await closing;
}

/** A call that came now; what it may leave with is noted among the grants of its replica. */
async function enter({ limiter, grants }: VirtualReplica, ticket: string) {
  const sixty = { limit: 60, windowMs: 60_000, maxWaitMs: 600_000, maxQueued: 1_000 };
  const asked = limiter.admit(admission(ticket, { ...sixty, arrivedAt: redis.clock.monotonic() }));
  await redis.pass(20);
  const reply = await asked;
  if (reply.kind === 'granted') grants.push(reply.grant);
  return reply;
}
const many = (replica: VirtualReplica, name: string, count: number): Promise<unknown> =>
  Promise.all(Array.from({ length: count }, (_, n) => enter(replica, `${name}${n}`)));
/** All grants together: what the bucket held at first, and what has drained. */
const isWithinLimit = (): void =>
  expect(one.grants.length + two.grants.length).toBeLessThanOrEqual(1 + 60 + redis.clock.monotonic() / 1_000);

test('no new call is sent before earlier sends are reported, however long it takes to put sends back', async () => {
  await many(one, 'before', 60);
  const taking = one.ceilings.take({ key: ceilingKey('acme'), perMinute: 1_000, perDay: null });
  await redis.pass(1_500);
  expect((await taking).kind).toBe('taken');
  redis.isUnavailable = true;
  await redis.pass(2_500);
  // One unit drains per second, and this replica has half of them.
  await many(one, 'meanwhile', 40);
  await redis.pass(20_000);
  expect(one.grants.length).toBeGreaterThan(60 + 8);
  redis.isUnavailable = false;
  redis.restoreMs = 400;
  while (one.modes.at(-1) !== 'redis')
    expect((await enter(one, `arriving${redis.clock.monotonic()}`)).kind).toBe('queued');
  await redis.pass(1_000);
  isWithinLimit();
});

test('a replica that knows nothing of an emptied Redis does not begin before the others are back', async () => {
  await closed(two);
  two = await redis.replica('new', 'deny');
  await redis.pass(1_500);
  await many(one, 'before', 60);
  redis.isUnavailable = true;
  await redis.pass(2_500);
  expect(two.modes.at(-1)).toBe('deny');
  redis.server.flush();
  redis.cut.add('one');
  redis.isUnavailable = false;
  for (let tried = 0; tried < 60; tried += 1) {
    if (tried === 20) redis.cut.clear();
    await enter(two, `new${tried}`);
    await redis.pass(10);
  }
  await redis.pass(3_000);
  expect([one.modes.at(-1), two.modes.at(-1)]).toEqual(['redis', 'redis']);
  isWithinLimit();
});
