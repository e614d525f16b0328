/** A lone call that asks its bucket and its ceiling at once, over a Redis that is some way off. Virtual time. */
import { afterEach, expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import { edgeOf } from '../../src/admission/ceiling-slots.ts';
import type { Lease, Ticket } from '../../src/admission/ticket.ts';
import { ceilingKey } from '../../src/ids.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { VirtualRedis } from '../support/virtual-redis.ts';

const roundTripMs = 20;
const ceiling = { key: ceilingKey('w'), perMinute: 100, perDay: 1_000 };
const options = { perMinute: ceiling.perMinute, perDay: ceiling.perDay, limit: 1_000, windowMs: 1_000 };

let close = async (): Promise<void> => {};
afterEach(() => close());

async function setUp(whenDown: 'local' | 'deny' = 'local') {
  const redis = new VirtualRedis();
  const { clock } = redis;
  const stores = await redis.replica('one', whenDown);
  redis.toMs = redis.fromMs = roundTripMs / 2;
  const failures: unknown[] = [];
  const { limiter, ceilings } = stores;
  const onFailure = (failure: unknown): void => void failures.push(failure);
  const queue = new AdmissionQueue({ clock, limiter, ceilings, onFailure });
  close = async () => {
    const closing = stores.close();
    await redis.pass(10_000);
    await closing;
    expect(failures).toEqual([]);
  };
  const enter = (id: string, more: CallOptions = {}): Promise<Ticket> =>
    queue.enter(...callOf(clock, id, { ...options, ...more }));
  /** Enters a call, waits for its lease, and returns after how many round trips it had it. */
  const send = async (id: string, more: CallOptions = {}): Promise<{ trips: number; lease: Lease }> => {
    const from = clock.monotonic();
    let at = NaN;
    const leased = enter(id, more)
      .then((ticket) => ticket.whenGranted())
      .then((lease) => {
        at = clock.monotonic();
        return lease;
      });
    await redis.pass(10 * roundTripMs);
    return { lease: await leased, trips: (at - from) / roundTripMs };
  };
  /** Slots that are taken of the minute and of the day. */
  const taken = async () => {
    const reading = Promise.all([ceilings.state(ceiling), ceilings.dayState(ceiling)]);
    await redis.pass(2 * roundTripMs);
    const [minute, day] = await reading;
    return [100 - (minute?.remaining ?? 0), 1_000 - (day?.remaining ?? 0)];
  };
  return { redis, enter, send, taken };
}

test('a call waits for one round trip where the one before it found bucket and ceiling free', async () => {
  const { send, taken } = await setUp();
  expect((await send('a')).trips).toBeGreaterThanOrEqual(2);
  expect((await send('b')).trips).toBe(1);
  expect((await send('c')).trips).toBe(1);
  expect(await taken()).toEqual([3, 3]);
});

test('of several calls at once one asks ahead, and they have their leases in order', async () => {
  const { redis, enter, send, taken } = await setUp();
  await send('a');
  const order: string[] = [];
  for (const id of ['b', 'c', 'd']) {
    void enter(id)
      .then((ticket) => ticket.whenGranted())
      .then(() => order.push(id));
  }
  await redis.pass(1.5 * roundTripMs);
  expect(order).toEqual(['b']);
  await redis.pass(10 * roundTripMs);
  expect(order).toEqual(['b', 'c', 'd']);
  expect(await taken()).toEqual([4, 4]);
});

test('the slot goes back where the bucket does not grant the call', async () => {
  const { redis, enter, send, taken } = await setUp();
  await send('a', { limit: 1, windowMs: 60_000 });
  const waiting = enter('b', { limit: 1, windowMs: 60_000, maxWaitMs: 75_000 });
  await redis.pass(10 * roundTripMs);
  const ticket = await waiting;
  expect(await taken()).toEqual([1, 1]);
  ticket.leave();
  const refused = enter('c', { limit: 1, windowMs: 60_000, maxWaitMs: 1_000 }).catch(
    (failure: unknown) => failure,
  );
  await redis.pass(10 * roundTripMs);
  expect(await refused).toMatchObject({ code: 'wait_too_long' });
  expect(await taken()).toEqual([1, 1]);
});

test('the slot goes back where the client leaves before the bucket replies', async () => {
  const { redis, enter, send, taken } = await setUp();
  await send('a');
  const client = new AbortController();
  const leaving = enter('b', { clientGone: client.signal });
  await redis.pass(roundTripMs / 2);
  client.abort();
  await redis.pass(10 * roundTripMs);
  await leaving;
  expect(await taken()).toEqual([1, 1]);
});

test.each([
  ['minute', { perMinute: 20 }, 20 - edgeOf(20)],
  ['day', { perDay: 20 }, 20 - edgeOf(20)],
] as [string, CallOptions, number][])(
  'near the end of the %s no call asks ahead: the slot might be that of another call',
  async (_which, limits, sentFar) => {
    const { send } = await setUp();
    const asksAhead: boolean[] = [];
    for (let n = 0; n < sentFar + 2; n += 1) asksAhead.push((await send(`c${n}`, limits)).trips <= 1);
    // The last call that found many slots left is followed by one that asks ahead.
    expect(asksAhead.slice(1)).toEqual([...Array<boolean>(sentFar - 1).fill(true), false, false]);
  },
);

test('after ten seconds nothing is known of the ceiling any more', async () => {
  const { redis, send } = await setUp();
  await send('a');
  await redis.pass(10_100);
  expect((await send('b')).trips).toBeGreaterThan(1);
  expect((await send('c')).trips).toBe(1);
});

test('a call that has asked ahead of a Redis that goes away is refused once, and nothing else fails', async () => {
  const { redis, enter, send } = await setUp('deny');
  await send('a');
  redis.isUnavailable = true;
  const entering = enter('b').catch((failure: unknown) => failure);
  await redis.pass(5_000);
  expect(await entering).toMatchObject({ code: 'limiter_unavailable' });
  redis.isUnavailable = false;
  await redis.pass(5_000);
});

test('the embedded stores give back what was taken ahead, too', async () => {
  const clock = new FakeClock();
  const { queue, limiter, ceilings } = embeddedQueue({ clock });
  const enter = (id: string): Promise<Ticket> =>
    queue.enter(...callOf(clock, id, { ...options, limit: 1, windowMs: 60_000, maxWaitMs: 75_000 }));
  await (await enter('a')).whenGranted();
  await enter('b');
  expect((await ceilings.state(ceiling))?.remaining).toBe(99);
  expect((await ceilings.dayState(ceiling))?.remaining).toBe(999);
  await limiter.close();
});
