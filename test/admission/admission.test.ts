/** Admission over the embedded stores on virtual time: single promises, one by one. The simulation mixes them all. */
import { describe, expect, test } from '@jest/globals';
import { ArrivalOrder } from '../../src/admission/admission.ts';
import { Lanes } from '../../src/admission/lanes.ts';
import type { AttemptResult } from '../../src/dispatch/dispatcher.ts';
import { TransportError } from '../../src/dispatch/transport-error.ts';
import { bucketKey, ceilingKey, ticketId } from '../../src/ids.ts';
import { requeue } from '../../src/journey/attempts.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { createEmbeddedLimiter, type Limiter } from '../../src/limiter/over-log/limiter.ts';
import { sequencePerMs } from '../../src/limiter/policy/bucket-state.policy.ts';
import { admission } from '../support/admission.ts';
import { callOf, type CallOptions } from '../support/admission-queue.ts';
import { atOrigins } from '../support/at-origins.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { withMethods } from '../support/with-methods.ts';
import { dropped, names, succeeded, throttled, world as worldOf } from './world.ts';

const plenty = { limit: 1_000, windowMs: 1_000 };
const one = { ...plenty, maxInFlight: 1 };
const short = { maxWaitMs: 5_000 };
const oneAMinute = { limit: 1, windowMs: 60_000 };
const minuteOf = (perMinute: number) => ({ key: ceilingKey('w'), perMinute, perDay: null });
const nobody = { waiting: 0, inFlight: 0 };

atOrigins('the admission queue', (instant) => {
  type Options = Parameters<typeof worldOf>[0];
  const world = (options: Options = {}) =>
    worldOf({
      originMs: instant(0),
      defaults: { limit: 10, windowMs: 10_000, maxQueued: 1_000_000, maxWaitMs: 100_000 },
      ...options,
    });

  test('no longer counts slots one by one once many are free: all of them are used at once', async () => {
    const { enter, pass, story } = world();
    for (const id of names(60)) enter(id, { ...plenty, perMinute: 30 });
    await pass(1);
    expect(story).toHaveLength(30);
    // One call goes ahead of a crowd after a silence; nobody answers it here, so the others follow 100 ms later.
    await pass(60_300);
    expect(story).toHaveLength(60);
  });

  test('refuses a waiting call as soon as a more urgent call takes the slot it could have waited for', async () => {
    const { enter, pass, story, refusals } = world();
    const options = { ...plenty, perMinute: 2, maxWaitMs: 65_000 };
    enter('a', options);
    await pass(10_000);
    enter('b', options);
    await pass(10_000);
    enter('late', { ...options, maxWaitMs: 45_000 });
    await pass(10);
    expect(story).toEqual(['a', 'b']);
    enter('urgent', { ...options, urgency: 1 });
    await pass(1);
    expect(story.slice(2)).toEqual(['late wait_too_long']);
    expect(refusals.get('late')?.retryInMs).toBe(50_140);
  });

  test('shares the slots of a ceiling between its lanes in rotation, and refuses a call that is too late by that', async () => {
    const { enter, pass, story, refusals } = world();
    const first = { ...plenty, perMinute: 2, bucket: 'one', lane: 'one', maxWaitMs: 65_000 };
    const second = { ...first, bucket: 'two', lane: 'two' };
    enter('a', first);
    await pass(10_000);
    enter('b', second);
    await pass(10_000);
    enter('b-later', { ...second, maxWaitMs: 45_000 });
    await pass(2_000);
    enter('a-too', first);
    await pass(1);
    // Lane `two` took the latest slot, so the next one belongs to lane `one`, although its call arrived later.
    expect(story).toEqual(['a', 'b', 'b-later wait_expired']);
    expect(refusals.get('b-later')?.retryInMs).toBe(48_150);
    await pass(60_000);
    expect(story.at(-1)).toBe('a-too');
  });

  test('refuses waiting calls at once when their bucket closes for longer than they can wait', async () => {
    const { enter, pass, story, settle, refusals } = world();
    enter('a', one);
    enter('b', { ...one, ...short });
    enter('c', one);
    await pass(1);
    settle('a', throttled({ closeMs: 9_000 }));
    await pass(1);
    enter('d', { ...one, ...short });
    await pass(0);
    expect(story).toEqual(['a', 'b wait_too_long', 'd wait_too_long']);
    expect(refusals.get('b')?.retryInMs).toBe(9_000);
    await pass(9_001);
    expect(story.slice(3)).toEqual(['c']);
  });

  test('gives units, slots and positions back when a client leaves, at whatever moment', async () => {
    const { enter, pass, story, gone, limiter, ceilings, settle, clock } = world();
    const options = { limit: 1, windowMs: 1_000_000, perMinute: 5, maxWaitMs: 2_000_000 };
    enter('a', { ...options, maxWaitMs: 100_000 });
    enter('b', options);
    enter('x', options);
    gone.get('a')?.abort();
    await pass(1);
    gone.get('x')?.abort();
    await pass(1);
    settle('b', dropped);
    await pass(5_000);
    expect(story).toHaveLength(3);
    expect(limiter.snapshot()).toMatchObject([nobody]);
    expect(limiter.snapshot()[0]?.meters[0]?.level).toBeLessThan(0.001);
    expect(await ceilings.state(minuteOf(5))).toMatchObject({ remaining: 5 });
    expect(clock.timers).toBe(0);
  });

  test('refuses, when it drains, only the waiting calls that cannot leave before the drain ends', async () => {
    const { enter, pass, story, queue } = world();
    for (const id of ['a', 'b', 'c', 'd']) enter(id, { limit: 1, windowMs: 10_000 });
    await pass(1);
    queue.drain(15_000);
    await pass(30_000);
    expect(story.toSorted()).toEqual(['a', 'b', 'c draining', 'd draining']);
  });

  test('gives calls positions in the order in which they came, also two thousand read after one gap', () => {
    const order = new ArrivalOrder();
    const next = (ms: number): number => Math.floor(order.next(instant(ms)) * sequencePerMs);
    const positions = [...Array.from({ length: 2_000 }, () => next(100)), next(100.5)];
    expect(positions).toEqual([...new Set(positions)].toSorted((a, b) => a - b));
    // The arrival of a call that came earlier is kept, and so is the order of those that follow.
    const another = new ArrivalOrder();
    const first = another.next(instant(100));
    expect(another.next(instant(20))).toBe(instant(20));
    expect(another.next(instant(100)) - first).toBeGreaterThanOrEqual(1 / sequencePerMs);
    expect(another.next(instant(500))).toBe(instant(500));
  });
});

describe('a call that cannot leave within its wait is refused at once, on a clock that stands still,', () => {
  test.each<[string, CallOptions[], string[]]>([
    ['when its bucket is full', [oneAMinute, oneAMinute], ['c0', 'c1 wait_too_long']],
    ['when its ceiling is full', [{ perMinute: 1 }, { perMinute: 1 }], ['c0', 'c1 wait_too_long']],
    ['when it will not wait', [{ perMinute: 1 }, { perMinute: 1, maxWaitMs: 0 }], ['c0', 'c1 wait_too_long']],
    [
      'when the last slot of its ceiling belongs to a waiting call',
      Array.from({ length: 3 }, () => ({ perMinute: 2, maxInFlight: 1 })),
      ['c0', 'c2 wait_too_long'],
    ],
    ['when its day is used up', [{ perDay: 1 }, { perDay: 1 }], ['c0', 'c1 day_quota_exhausted']],
    [
      'when its lane has as many waiting calls as it may',
      Array.from({ length: 3 }, () => ({ maxInFlight: 1, maxQueued: 1 })),
      ['c0', 'c2 queue_full'],
    ],
  ])('%s', async (_, calls, expected) => {
    const { enter, pass, story } = worldOf();
    for (const [at, options] of calls.entries()) {
      enter(`c${at}`, options);
      await pass(0);
    }
    expect(story).toEqual(expected);
  });

  test('when its ceiling has a slot within its wait, but no longer after a slow reply of the store', async () => {
    const { enter, pass, story, clock } = worldOf({
      around: (limiter) =>
        withMethods<Limiter>(limiter, {
          async admit(asked) {
            await new Promise<void>((resolve) => void clock.after(500, resolve));
            return limiter.admit(asked);
          },
        }),
    });
    enter('a', { perMinute: 1, maxInFlight: 1 });
    await pass(1_000);
    // The next slot frees 59,150 ms after the reply, when 58,800 ms of the wait are left.
    enter('b', { perMinute: 1, maxInFlight: 1, maxWaitMs: 59_300 });
    await pass(1_000);
    expect(story).toEqual(['a', 'b wait_too_long']);
  });
});

describe('a call that had its lease and was not sent keeps its position, and gives back all that it had taken:', () => {
  const limits = { perMinute: 40, perDay: 100 };
  const stated = { ...limits, limit: 60, windowMs: 60_000_000 };
  const why = { phase: 'connect', neverSent: true, stale: false } as const;
  const error = new TransportError({ kind: 'unreachable', code: 'ECONNREFUSED', ...why });
  const neverSent: AttemptResult = { kind: 'failed', error };
  const after100 = { kind: 'resend', notBeforeMs: 100, closes: 'none', closeMs: 0, history: {} } as const;
  const notReached = (lease: Lease): void => requeue(lease, neverSent, { ...after100, cause: 'never_sent' });

  test('one whose upstream was not reached takes one slot, not two', async () => {
    const { ticketOf, pass, ceilings, limiter, story } = worldOf({ defaults: stated });
    const ceiling = { key: ceilingKey('w'), ...limits };
    /** Slots of the minute and of the day, units of the bucket. */
    const taken = async () => [
      40 - ((await ceilings.state(ceiling))?.remaining ?? 0),
      100 - ((await ceilings.dayState(ceiling))?.remaining ?? 0),
      Math.round(limiter.snapshot()[0]?.meters[0]?.level ?? 0),
    ];
    const ticket = await ticketOf('t');
    for (let tries = 0; tries < 3; tries += 1) {
      const granted = ticket.whenGranted();
      await pass(1_000);
      const lease = await granted;
      expect(await taken()).toEqual([1, 1, 1]);
      if (tries < 2) notReached(lease);
      else lease.settle(succeeded, null);
    }
    ticket.leave();
    await pass(1_000);
    expect(await taken()).toEqual([1, 1, 1]);
    expect(story).toEqual([]);
  });

  test.each<[string, CallOptions]>([
    ['minute', { perMinute: 1 }],
    ['day', { perDay: 1 }],
  ])('the last slot of a %s is taken by it again, not waited for', async (_, ceiling) => {
    const { ticketOf, enter, pass, sentAt } = worldOf({ defaults: { ...stated, ...ceiling } });
    const first = await ticketOf('first');
    const lease = await first.whenGranted();
    enter('second');
    await pass(1);
    notReached(lease);
    const again = first.whenGranted();
    await pass(150);
    (await again).settle(dropped, null);
    enter('third');
    await pass(1_000);
    expect([...sentAt.keys()]).toEqual(['third']);
  });
});

describe('a slot that another replica takes while a call waits for it', () => {
  const options: CallOptions = { perMinute: 2, maxInFlight: 1 };

  /** One call in flight, which takes the first of two slots, and one that waits behind it for the second. */
  async function waiting() {
    const all = worldOf({ defaults: options });
    all.enter('first');
    all.enter('second');
    await all.pass(1);
    expect(all.story).toEqual(['first']);
    const takeElsewhere = () => all.ceilings.take(callOf(all.clock, 'other', options)[0].ceiling);
    return { ...all, takeElsewhere };
  }

  test.each([
    ['within two seconds, when it is taken at once', 0, 2_000],
    ['before its wait has doubled, when it is taken later', 9_000, 11_000],
  ])('refuses that call although no other arrives, %s', async (_, waitedMs, withinMs) => {
    const { pass, takeElsewhere, story, refusals } = await waiting();
    await pass(waitedMs);
    await takeElsewhere();
    await pass(withinMs);
    expect(story.slice(1)).toEqual(['second wait_expired']);
    expect(refusals.get('second')).toMatchObject({ heldBy: 'ceiling_minute' });
  });

  test('is looked for no longer after the last waiting call', async () => {
    const { pass, settle, story, clock } = await waiting();
    await pass(5_000);
    settle('first', succeeded);
    await pass(1);
    settle('second', succeeded);
    await pass(5_000);
    expect([story, clock.timers]).toEqual([['first', 'second'], 0]);
  });
});

describe('what a replica knows of a lane', () => {
  const inB = (lane: string) => callOf(new FakeClock(), 'call', { bucket: 'b', lane })[0];

  test('is forgotten when there are very many, and not of lanes with calls', async () => {
    const clock = new FakeClock();
    const lanes = new Lanes(clock);
    const [busy, unused] = [lanes.of(inB('busy')), lanes.of(inB('unused'))];
    Object.assign(busy, { calls: 1 });
    for (let at = 0; at < 10_000; at += 1) lanes.of(inB(`l${at}`));
    clock.outside(121_000, () => {});
    await clock.run(121_000);
    lanes.of(inB('new'));
    expect(lanes.of(inB('unused'))).not.toBe(unused);
    expect(lanes.of(inB('busy'))).toBe(busy);
  });

  test('no longer holds it to single calls, as another replica did at a full ceiling, once there is room', async () => {
    const { limiter, enter, pass, story } = worldOf();
    const admitted = { lane: 'l', perMinute: 2, ceilingTag: '2.none' };
    const elsewhere = await limiter.admit(admission('elsewhere', { ...admitted, arrivedAt: 0 }));
    if (elsewhere.kind !== 'granted') throw new Error('not granted');
    await limiter.settle(elsewhere.grant, { kind: 'returned', sleepMs: 0, because: 'ceiling_minute' }, null);
    await limiter.cancel(bucketKey('bucket'), ticketId('elsewhere'));
    for (const id of names(5)) enter(id, { lane: 'l', perMinute: 100 });
    await pass(1_000);
    expect(story).toEqual(names(5));
  });
});

atOrigins('the embedded limiter', (instant) => {
  test('reports grants to calls in order, also when a grant is given back while others are being reported', async () => {
    const clock = new FakeClock();
    const granted: string[] = [];
    const limiter: Limiter = createEmbeddedLimiter(shiftedClock(clock, instant(0)), {
      onGrant(grant) {
        granted.push(grant.ticket);
        if (grant.ticket === 't1') void limiter.settle(grant, dropped, null);
      },
      onClosed() {},
    });
    const admit = (id: string) => limiter.admit(admission(id, { limit: 3, windowMs: 1_000, maxInFlight: 2 }));
    const first = [await admit('a'), await admit('b')];
    for (const id of ['t1', 't2', 't3']) await admit(id);
    for (const reply of first) {
      if (reply.kind !== 'granted') throw new Error('nothing was granted');
      await limiter.settle(reply.grant, throttled({ closeMs: 2_000 }), null);
    }
    clock.outside(5_000, () => {});
    await clock.run(5_000);
    expect(granted).toEqual(['t1', 't2', 't3']);
    await limiter.close();
  });
});
