/** A slot that is given back, and calls in other buckets of its workspace that wait for one. Virtual time. */
import { expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { ceilingKey } from '../../src/ids.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { VirtualRedis } from '../support/virtual-redis.ts';
import { withMethods } from '../support/with-methods.ts';

const options: CallOptions = { maxWaitMs: 75_000 };

/** Enters a call, and returns when it had its lease; `null` = it has none yet. */
function sendAt(
  queue: AdmissionQueue,
  clock: FakeClock,
  [id, more]: [string, CallOptions],
): () => number | null {
  let at: number | null = null;
  void queue
    .enter(...callOf(clock, id, { ...options, ...more }))
    .then((ticket) => ticket.whenGranted())
    .then(() => (at = clock.monotonic()));
  return () => at;
}

async function leaseOf(
  queue: AdmissionQueue,
  clock: FakeClock,
  [id, more]: [string, CallOptions],
): Promise<Lease> {
  const ticket = await queue.enter(...callOf(clock, id, { ...options, ...more }));
  return ticket.whenGranted();
}

test.each([
  ['minute', { perMinute: 1, maxWaitMs: 200_000 }],
  ['day', { perDay: 1, maxWaitMs: 200_000_000 }],
] as [string, CallOptions][])(
  'a call in another bucket goes as soon as a slot of the %s is back',
  async (_which, ceiling) => {
    const clock = new FakeClock();
    const { queue, limiter } = embeddedQueue({ clock });
    const unsent = await leaseOf(queue, clock, ['unsent', { ...ceiling, bucket: 'one' }]);
    const sent = [
      sendAt(queue, clock, ['waits', { ...ceiling, bucket: 'two' }]),
      sendAt(queue, clock, ['waits too', { ...ceiling, bucket: 'three' }]),
    ];
    await clock.run(1_000);
    expect(sent.map((at) => at())).toEqual([null, null]);
    unsent.settle({ kind: 'dropped' }, null);
    await clock.run(1_050);
    // There is one slot.
    expect(sent.filter((at) => at() !== null)).toHaveLength(1);
    await limiter.close();
  },
);

test('of hundreds of buckets that wait for a slot, only some are asked for the calls that slots which are back allow', async () => {
  const clock = new FakeClock();
  const woken: string[] = [];
  const { queue, limiter } = embeddedQueue({
    clock,
    around: (embedded) =>
      withMethods(embedded, {
        wake: (bucket, lane) => {
          woken.push(bucket);
          return embedded.wake(bucket, lane);
        },
      }),
  });
  const ceiling = { perMinute: 16, maxWaitMs: 2_000_000 };
  const unsent: Lease[] = [];
  for (let n = 0; n < 16; n += 1)
    unsent.push(await leaseOf(queue, clock, [`unsent ${n}`, { ...ceiling, bucket: 'one' }]));
  const sent = Array.from({ length: 300 }, (_, n) =>
    sendAt(queue, clock, [`waits ${n}`, { ...ceiling, bucket: `bucket ${n}` }]),
  );
  await clock.run(1_000);
  for (const lease of unsent) lease.settle({ kind: 'dropped' }, null);
  await clock.run(1_500);
  expect(sent.filter((at) => at() !== null)).toHaveLength(16);
  expect(woken.length).toBeLessThan(100);
  await limiter.close();
});

test('a slot that is back reaches the only lane that can use it, behind dozens that have calls in flight', async () => {
  const clock = new FakeClock();
  const { queue, limiter } = embeddedQueue({ clock });
  const ceiling = { perMinute: 102 };
  const unsent = await leaseOf(queue, clock, ['unsent', { ...ceiling, bucket: 'one' }]);
  const lanes = Array.from({ length: 100 }, (_, n) => ({ ...ceiling, bucket: `b${n}`, maxInFlight: 1 }));
  for (const [n, lane] of lanes.entries()) await leaseOf(queue, clock, [`in flight ${n}`, lane]);
  await clock.run(1_000);
  // Served last, it asks last.
  const able = { ...ceiling, bucket: 'able' };
  await leaseOf(queue, clock, ['sent', able]);
  for (const [n, lane] of lanes.entries()) sendAt(queue, clock, [`held ${n}`, lane]);
  const sentAt = sendAt(queue, clock, ['waits', able]);
  await clock.run(2_000);
  expect(sentAt()).toBeNull();
  unsent.settle({ kind: 'dropped' }, null);
  await clock.run(2_100);
  expect(sentAt()).not.toBeNull();
  await limiter.close();
});

test('a call at another replica goes as soon as the message of a slot that is back has arrived', async () => {
  const redis = new VirtualRedis();
  const { clock } = redis;
  const failures: unknown[] = [];
  const replicaOf = async (name: string) => {
    const stores = await redis.replica(name, 'local', (grant) => queue.listener.onGrant(grant));
    const { limiter, ceilings } = stores;
    const onFailure = (failure: unknown): void => void failures.push(failure);
    const queue: AdmissionQueue = new AdmissionQueue({ clock, limiter, ceilings, onFailure });
    return { queue, stores };
  };
  const one = await replicaOf('one');
  const two = await replicaOf('two');
  // Both replicas have noticed that there are two.
  await redis.pass(3_000);
  const leased = leaseOf(one.queue, clock, ['unsent', { perMinute: 1, bucket: 'one' }]);
  await redis.pass(100);
  const sentAt = sendAt(two.queue, clock, ['waits', { perMinute: 1, bucket: 'two' }]);
  await redis.pass(1_000);
  expect(sentAt()).toBeNull();
  const backAt = clock.monotonic();
  (await leased).settle({ kind: 'dropped' }, null);
  await redis.pass(1_000);
  expect((sentAt() ?? Infinity) - backAt).toBeLessThan(50);
  const closing = Promise.all([one.stores.close(), two.stores.close()]);
  await redis.pass(10_000);
  await closing;
  expect(failures).toEqual([]);
});

test('who gives a slot back over Redis waits for one round trip, and not for the message to other replicas', async () => {
  const redis = new VirtualRedis();
  const { clock } = redis;
  const one = await redis.replica('one');
  const two = await redis.replica('two');
  await redis.pass(3_000);
  redis.toMs = redis.fromMs = 10;
  const ceiling = { key: ceilingKey('w'), perMinute: 1, perDay: null };
  const heard: string[] = [];
  two.ceilings.listen((key) => heard.push(key));
  const taking = one.ceilings.take(ceiling);
  await redis.pass(100);
  const taken = await taking;
  if (taken.kind !== 'taken') throw new Error('no slot');
  const from = clock.monotonic();
  const giving = one.ceilings.giveSlotBack(ceiling, taken.slot).then(() => clock.monotonic() - from);
  await redis.pass(100);
  expect(await giving).toBe(20);
  expect(heard).toEqual(['w']);
  const closing = Promise.all([one.close(), two.close()]);
  await redis.pass(10_000);
  await closing;
});
