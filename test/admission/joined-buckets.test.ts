/** Calls that wait in a bucket which turns out to share the quota of another one: they go on there, in their order. */
import { expect, test } from '@jest/globals';
import { bucketKey, ceilingKey, laneKey } from '../../src/ids.ts';
import type { Ticket } from '../../src/admission/ticket.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { CeilingStore, type TakeReply } from '../../src/limiter/ceiling-store.ts';

const setting = {
  meters: [{ meter: 'requests', limit: 1, windowMs: 1_000 }],
  learn: true,
  probe: 0,
} as const;
const [first, second] = [bucketKey('first'), bucketKey('second')];

/** Ceilings whose slots are taken at once, and whose replies come late. */
class SlowCeilings extends CeilingStore {
  readonly #clock: FakeClock;
  readonly #ms: number;

  constructor(clock: FakeClock, ms: number) {
    super(clock);
    this.#clock = clock;
    this.#ms = ms;
  }

  override async take(...asked: Parameters<CeilingStore['take']>): Promise<TakeReply> {
    const reply = await super.take(...asked);
    if (this.#ms > 0) await new Promise<void>((resolve) => void this.#clock.after(this.#ms, resolve));
    return reply;
  }
}

/** A queue whose bucket `second` belongs to `first` from `join` on. */
function start(perMinute: number | null = null, ceilingMs = 0) {
  const clock = new FakeClock();
  let isJoined = false;
  const ceilings = new SlowCeilings(clock, ceilingMs);
  const { queue, limiter } = embeddedQueue({
    clock,
    ceilings,
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
    void ticket.whenGranted().then(
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
  return { clock, pass, enter, join, left, waiting, limiter, queue, ceilings };
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
  const lease = await ticket.whenGranted();
  join();
  lease.settle({ kind: 'throttled', closeMs: 2_000, requeue: true, sleepMs: 0 }, null);
  const again = ticket.whenGranted();
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

test('a call that still asks its ceiling when its bucket is joined leaves with a grant of the other one, and takes one slot', async () => {
  const { pass, enter, join, left, limiter, ceilings } = start(10, 50);
  // The bucket grants one call a second, and the second call of the lane is granted behind the first one.
  for (const name of ['a', 'b', 'c']) await enter(name, second);
  join();
  await pass(20);
  expect(left).toEqual([]);
  await pass(5_000);
  expect(left).toEqual(['a of first', 'b of first', 'c of first']);
  expect(await ceilings.state({ key: ceilingKey('w'), perMinute: 10, perDay: null })).toMatchObject({
    remaining: 7,
  });
  expect(limiter.snapshot().map(({ waiting, inFlight }) => waiting + inFlight)).toEqual([0, 0]);
  await limiter.close();
});
