/** Calls that wait in a bucket which turns out to share the quota of another one: they go on there, in their order. */
import { expect, test } from '@jest/globals';
import { bucketKey, laneKey } from '../../src/ids.ts';
import type { Ticket } from '../../src/admission/ticket.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const setting = {
  meters: [{ meter: 'requests', limit: 1, windowMs: 1_000 }],
  learn: true,
  probe: 0,
} as const;
const [first, second] = [bucketKey('first'), bucketKey('second')];

/** A queue whose bucket `second` belongs to `first` from `join` on. */
function start(perMinute: number | null = null) {
  const clock = new FakeClock();
  let isJoined = false;
  const { queue, limiter } = embeddedQueue({
    clock,
    joinedBucketOf: ({ admission: { bucket } }) =>
      isJoined && bucket === second ? { bucket: first, lane: laneKey('lane') } : null,
  });
  const pass = async (ms: number): Promise<void> => {
    const until = clock.monotonic() + ms;
    clock.outside(until, () => {});
    await clock.run(until);
  };
  const left: string[] = [];
  const enter = async (name: string, bucket: string, options: CallOptions = {}): Promise<Ticket> => {
    const call = callOf(clock, name, { bucket, lane: 'lane', setting, perMinute, ...options });
    const ticket = await queue.enter(...call);
    void ticket.granted().then(
      (lease) => {
        left.push(`${name} of ${lease.grant.bucket}`);
        lease.settle({ kind: 'succeeded', spent: null }, null);
        ticket.leave();
      },
      () => left.push(`${name} refused`),
    );
    await pass(1);
    return ticket;
  };
  const join = (): void => {
    isJoined = true;
    queue.moveToJoinedBuckets();
  };
  const waiting = (): Record<string, number> =>
    Object.fromEntries(limiter.snapshot().map((one) => [one.bucket, one.waiting]));
  return { clock, pass, enter, join, left, waiting, limiter, queue };
}

test('calls of both buckets leave in the order in which they came, at the pace of one quota', async () => {
  const { clock, pass, enter, join, left, waiting, limiter } = start();
  for (const name of ['a', 'c', 'e', 'g']) {
    await enter(name, first);
    await enter(String.fromCharCode(name.charCodeAt(0) + 1), second);
  }
  expect(left).toEqual(['a of first', 'b of second']);
  expect(waiting()).toEqual({ first: 3, second: 3 });
  join();
  expect(waiting()).toEqual({ first: 6, second: 0 });
  const times: number[] = [];
  for (let seen = left.length; left.length < 8;) {
    await pass(50);
    if (left.length > seen) times.push(clock.monotonic());
    seen = left.length;
  }
  expect(left.slice(2)).toEqual(['c', 'd', 'e', 'f', 'g', 'h'].map((name) => `${name} of first`));
  // One call a second, not two.
  expect((times.at(-1) ?? 0) - (times[0] ?? 0)).toBeGreaterThan(4_800);
  await limiter.close();
});

test('a call of a joined bucket that is put back into its lane waits where it belongs now', async () => {
  const { clock, pass, join, limiter, queue } = start();
  const ticket = await queue.enter(...callOf(clock, 'a', { bucket: second, lane: 'lane', setting }));
  const lease = await ticket.granted();
  join();
  lease.settle({ kind: 'throttled', closeMs: 2_000, requeue: true, sleepMs: 0 }, null);
  const again = ticket.granted();
  await pass(5_000);
  const next = await again;
  expect(next.grant.bucket).toBe(first);
  next.settle({ kind: 'succeeded', spent: null }, null);
  ticket.leave();
  expect(limiter.snapshot().map(({ waiting, inFlight }) => waiting + inFlight)).toEqual([0, 0]);
  await limiter.close();
});

test('a call that its ceiling holds is moved with the others, and its client can leave', async () => {
  const { pass, enter, join, left, waiting, limiter } = start(1);
  await enter('a', second);
  const held = await enter('b', second, { maxWaitMs: 100_000 });
  await pass(2_000);
  join();
  await pass(1);
  expect(waiting()).toEqual({ first: 1, second: 0 });
  held.leave();
  await pass(1);
  expect(waiting()).toEqual({ first: 0, second: 0 });
  expect(left).toEqual(['a of second', 'b refused']);
  await limiter.close();
});
