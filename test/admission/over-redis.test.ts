/** Admission over a Redis that is some way off: how many round trips a call waits for, and what comes back. Virtual time. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import { edgeOf } from '../../src/admission/ceiling-gate.ts';
import type { Ticket } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { ceilingKey } from '../../src/ids.ts';
import { callOf, type CallOptions } from '../support/admission-queue.ts';
import { VirtualRedis } from '../support/virtual-redis.ts';

let redis: VirtualRedis;
const replicas: { close(): Promise<void> }[] = [];
const failures: unknown[] = [];
afterEach(async () => {
  const closing = Promise.all(replicas.splice(0).map((replica) => replica.close()));
  await redis.pass(10_000);
  await closing;
  expect(failures.splice(0)).toEqual([]);
});

async function replica(whenDown: 'local' | 'deny' = 'local') {
  const stores = await redis.replica('one', whenDown, (grant) => queue.listener.onGrant(grant));
  replicas.push(stores);
  const { limiter, ceilings } = stores;
  const onFailure = (failure: unknown): void => void failures.push(failure);
  const queue: AdmissionQueue = new AdmissionQueue({ clock: redis.clock, limiter, ceilings, onFailure });
  const enter = (id: string, options: CallOptions): Promise<Ticket> =>
    queue.enter(...callOf(redis.clock, id, options));
  return { ceilings, enter };
}
/** Waits until a reply must be there. */
async function replied<T>(waiting: Promise<T>, ms = 200): Promise<T> {
  await redis.pass(ms);
  return waiting;
}
const failureOf = (waiting: Promise<unknown>): Promise<unknown> =>
  waiting.catch((failure: unknown) => failure);

describe('a lone call asks its bucket and its ceiling at once', () => {
  const tripMs = 20;
  const ceiling = { key: ceilingKey('w'), perMinute: 100, perDay: 1_000 };
  const defaults = { perMinute: 100, perDay: 1_000, limit: 1_000, windowMs: 1_000 };
  const full = { limit: 1, windowMs: 60_000 };

  async function begin(whenDown: 'local' | 'deny' = 'local') {
    redis = new VirtualRedis();
    const { enter: enterWith, ceilings } = await replica(whenDown);
    redis.toMs = redis.fromMs = tripMs / 2;
    const enter = (id: string, options: CallOptions = {}) => enterWith(id, { ...defaults, ...options });
    /** After how many round trips the call has its lease. */
    const trips = async (id: string, options: CallOptions = {}): Promise<number> => {
      const from = redis.clock.monotonic();
      const leased = enter(id, options).then((ticket) => ticket.whenGranted());
      return (await replied(leased.then(() => redis.clock.monotonic() - from))) / tripMs;
    };
    /** Slots that are taken of the minute and of the day. */
    const taken = async () => {
      const [minute, day] = await replied(Promise.all([ceilings.state(ceiling), ceilings.dayState(ceiling)]));
      return [100 - (minute?.remaining ?? 0), 1_000 - (day?.remaining ?? 0)];
    };
    return { enter, trips, taken };
  }

  test('where the one before it found both free: it waits for one round trip', async () => {
    const { trips, taken } = await begin();
    expect(await trips('a')).toBeGreaterThanOrEqual(2);
    expect([await trips('b'), await trips('c')]).toEqual([1, 1]);
    expect(await taken()).toEqual([3, 3]);
  });

  test('and gives the slot back where the bucket does not grant the call', async () => {
    const { enter, trips, taken } = await begin();
    await trips('a', full);
    const ticket = await replied(enter('b', { ...full, maxWaitMs: 75_000 }));
    expect(await taken()).toEqual([1, 1]);
    ticket.leave();
    const refused = failureOf(enter('c', { ...full, maxWaitMs: 1_000 }));
    expect(await replied(refused)).toMatchObject({ code: 'wait_too_long' });
    expect(await taken()).toEqual([1, 1]);
  });

  test.each<[string, CallOptions]>([
    ['minute', { perMinute: 20 }],
    ['day', { perDay: 20 }],
  ])('but not near the end of the %s: the slot might be that of another call', async (_, limits) => {
    const { trips } = await begin();
    const far = 20 - edgeOf(20);
    const asksAhead: boolean[] = [];
    for (let n = 0; n < far + 2; n += 1) asksAhead.push((await trips(`c${n}`, limits)) <= 1);
    // The last call that found many slots left is followed by one that asks ahead.
    expect(asksAhead.slice(1)).toEqual([...Array<boolean>(far - 1).fill(true), false, false]);
  });

  test('and is refused once where Redis goes away, and nothing else fails', async () => {
    const { enter, trips } = await begin('deny');
    await trips('a');
    redis.isUnavailable = true;
    expect(await replied(failureOf(enter('b')), 5_000)).toMatchObject({ code: 'limiter_unavailable' });
  });
});

// Without a reply for 500 ms Redis is away.
test.each([2, 40, 80, 220, 400])(
  'a call that will not wait is sent where there is room, and refused with its time where there is none, %s ms from Redis',
  async (tripMs) => {
    redis = new VirtualRedis();
    const { enter } = await replica();
    redis.toMs = redis.fromMs = tripMs / 2;
    const outcome = (id: string): Promise<unknown> =>
      replied(
        failureOf(
          enter(id, { maxWaitMs: 0, perMinute: 1 }).then(async (ticket) => {
            await ticket.whenGranted();
            return { sentWithMs: ticket.remainingMs() };
          }),
        ),
        10 * tripMs + 200,
      );
    // Nothing: should its attempt fail, it is not sent once more, and answered with that failure.
    expect(await outcome('a')).toEqual({ sentWithMs: 0 });
    const refused = await outcome('b');
    expect(refused).toMatchObject({ code: 'wait_too_long', details: { heldBy: 'ceiling_minute' } });
    const { retryInMs = 0 } = refused instanceof Refusal ? refused.details : {};
    expect(retryInMs).toBeGreaterThan(60_000 - 20 * tripMs - 400);
    expect(retryInMs).toBeLessThanOrEqual(60_150 + 2 * tripMs);
  },
);
