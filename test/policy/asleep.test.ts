/** A lane that sleeps knows for what: a change of that wakes it, and whoever is refused is told it. */
import { describe, expect, test } from '@jest/globals';
import type { Bucket } from '../../src/limiter/policy/bucket-state.policy.ts';
import { asleepUntil } from '../../src/limiter/policy/lanes.policy.ts';
import type { LaneSetting, Settlement } from '../../src/limiter/limiter.ts';
import {
  charged,
  reconfigure,
  settle,
  tick,
  maxOtherLimitsMs,
} from '../../src/limiter/policy/scheduler.policy.ts';
import { atOrigins, type Instant } from './at-origins.ts';
import { admit, bucketWith, call, newBucket, replica, type Wish } from './scheduling.ts';

const plenty: Wish = { limit: 1_000 };
const lane: LaneSetting = { weight: 1, maxInFlight: null, perMinute: null, ceiling: '2.none' };
const { setting } = call('any', plenty);

/** A lane with `waiting` calls whose first grant came back like this. */
function asleep(instant: Instant, back: Settlement, waiting: number): Bucket {
  const { bucket, grants } = bucketWith(instant, 1, { ...plenty, ...lane });
  settle(bucket, grants[0]?.lease ?? '', back, null, instant(1_010));
  for (let at = 0; at < waiting; at += 1) {
    admit(bucket, call(`w${at}`, { ...plenty, ...lane }), replica, instant(1_020));
  }
  return bucket;
}

type Returned = Extract<Settlement, { kind: 'returned' }>;
const returned = (because: Returned['because'], sleepMs = 50_000): Returned => ({
  kind: 'returned',
  sleepMs,
  because,
});
const change = (of: Partial<LaneSetting>) => ({ setting, lanes: [{ ...lane, lane: 'l', ...of }] });

atOrigins('a lane that sleeps for its ceiling', (instant) => {
  describe.each(['ceiling_minute', 'ceiling_day'] as const)('(%s)', (because) => {
    test('wakes when the ceiling has other limits, and goes on with one call until it is told of slots', () => {
      const bucket = asleep(instant, returned(because), 3);
      expect(tick(bucket, replica, [], instant(1_500)).grants).toEqual([]);
      const { grants } = reconfigure(bucket, change({ ceiling: '5.none' }), instant(2_000));
      expect(grants.map(({ ticket }) => ticket)).toEqual(['t0']);
      const told = charged(bucket, grants[0]?.lease ?? '', { slots: 2, nextSlotMs: 9_000 }, instant(2_001));
      expect(told.grants.map(({ ticket }) => ticket)).toEqual(['w0', 'w1']);
    });

    test('wakes with the first call that comes under other limits, and keeps the order', () => {
      const bucket = asleep(instant, returned(because), 1);
      const reply = admit(
        bucket,
        call('new', { ...plenty, ...lane, ceiling: '5.none' }),
        replica,
        instant(2_000),
      );
      expect(reply).toMatchObject({ kind: 'queued', ahead: 1 });
      expect(reply.effects.grants.map(({ ticket }) => ticket)).toEqual(['t0']);
    });

    test('sleeps for a moment when a slot was the last one under other limits than it has', () => {
      const bucket = asleep(instant, returned(because), 1);
      const { grants } = reconfigure(bucket, change({ ceiling: '50.none' }), instant(2_000));
      const edge = { slots: 0, nextSlotMs: 50_000, ceiling: lane.ceiling };
      expect(charged(bucket, grants[0]?.lease ?? '', edge, instant(2_001)).grants).toEqual([]);
      const wakes = instant(2_001 + maxOtherLimitsMs);
      expect(asleepUntil(bucket.lanes.get('l') ?? never())).toBe(wakes);
      expect(tick(bucket, replica, [], wakes).grants.map(({ ticket }) => ticket)).toEqual(['w0']);
    });

    test('sleeps on where nothing has changed', () => {
      const bucket = asleep(instant, returned(because), 1);
      const settled = reconfigure(bucket, change({ weight: 3, maxInFlight: 7 }), instant(2_000));
      const entered = admit(bucket, call('new', { ...plenty, ...lane }), replica, instant(2_000));
      expect([...settled.grants, ...entered.effects.grants]).toEqual([]);
      expect(asleepUntil(bucket.lanes.get('l') ?? never())).toBe(instant(51_010));
    });

    // A replica that has not heard of the new limits yet asked under the old ones, or its word comes late.
    test('sleeps for a moment when it was refused under other limits than it has', () => {
      const { bucket, grants } = bucketWith(instant, 1, { ...plenty, ...lane });
      reconfigure(bucket, change({ ceiling: '50.none' }), instant(1_005));
      const late = { ...returned(because, 80_000_000), ceiling: lane.ceiling };
      settle(bucket, grants[0]?.lease ?? '', late, null, instant(1_010));
      const wakes = 1_010 + maxOtherLimitsMs;
      expect(tick(bucket, replica, [], instant(wakes - 1)).grants).toEqual([]);
      expect(tick(bucket, replica, [], instant(wakes)).grants).toHaveLength(1);
    });

    test('that is refused again under the new limits sleeps for those', () => {
      const bucket = asleep(instant, returned(because), 0);
      const [grant] = reconfigure(bucket, change({ ceiling: '5.none' }), instant(2_000)).grants;
      settle(bucket, grant?.lease ?? '', returned('ceiling_minute', 3_000), null, instant(2_100));
      expect(asleepUntil(bucket.lanes.get('l') ?? never())).toBe(instant(5_100));
      expect(tick(bucket, replica, [], instant(5_100)).grants).toHaveLength(1);
    });
  });

  test('and for a back-off wakes when that is over, not before', () => {
    const bucket = asleep(instant, returned('ceiling_day', 80_000), 1);
    const other = admit(bucket, call('x', { ...plenty, lane: 'other' }), replica, instant(1_100)).effects
      .grants;
    settle(bucket, other[0]?.lease ?? '', { kind: 'dropped' }, null, instant(1_100));
    const [woken] = reconfigure(bucket, change({ ceiling: 'a' }), instant(1_200)).grants;
    settle(bucket, woken?.lease ?? '', returned('backoff', 9_000), null, instant(1_200));
    expect(reconfigure(bucket, change({ ceiling: 'b' }), instant(2_000)).grants).toEqual([]);
    expect(tick(bucket, replica, [], instant(10_199)).grants).toEqual([]);
    expect(tick(bucket, replica, [], instant(10_200)).grants).toHaveLength(1);
  });

  test('that is full by the last report wakes, too', () => {
    const { bucket, grants } = bucketWith(instant, 1, { ...plenty, ...lane });
    charged(bucket, grants[0]?.lease ?? '', { slots: 0, nextSlotMs: 50_000 }, instant(1_010));
    admit(bucket, call('w', { ...plenty, ...lane }), replica, instant(1_020));
    expect(reconfigure(bucket, change({ ceiling: 'none.none' }), instant(2_000)).grants).toHaveLength(1);
  });
});

atOrigins('new settings', (instant) => {
  test('of lanes that the bucket does not know make none', () => {
    const bucket = newBucket(instant);
    reconfigure(bucket, change({ ceiling: '9.9' }), instant(1_000));
    expect(bucket.lanes.size).toBe(0);
  });

  test('of a cap let waiting calls go at once, and hold them at once', () => {
    const { bucket, grants } = bucketWith(instant, 5, { ...plenty, ...lane, maxInFlight: 1 });
    expect(grants).toHaveLength(1);
    const more = reconfigure(bucket, change({ maxInFlight: 3 }), instant(1_100)).grants;
    expect(more.map(({ ticket }) => ticket)).toEqual(['t1', 't2']);
    reconfigure(bucket, change({ maxInFlight: 1 }), instant(1_200));
    const done = { kind: 'succeeded', spent: null } as const;
    expect(settle(bucket, grants[0]?.lease ?? '', done, null, instant(1_300)).grants).toEqual([]);
    expect(settle(bucket, more[0]?.lease ?? '', done, null, instant(1_300)).grants).toEqual([]);
    expect(settle(bucket, more[1]?.lease ?? '', done, null, instant(1_300)).grants).toHaveLength(1);
  });

  test('of weights keep the sum of what waits', () => {
    const bucket = newBucket(instant);
    for (const name of ['a', 'b', 'c']) {
      for (let at = 0; at < 4; at += 1) {
        admit(
          bucket,
          call(`${name}${at}`, { limit: 1, windowMs: 1_000, lane: name }),
          replica,
          instant(1_000),
        );
      }
    }
    const weights = { a: 5, b: 0.5, c: 2, unknown: 9 };
    reconfigure(
      bucket,
      {
        setting: call('any', { limit: 1, windowMs: 1_000 }).setting,
        lanes: Object.entries(weights).map(([key, weight]) => ({ ...lane, lane: key, weight })),
      },
      instant(1_000),
    );
    expect(bucket.waitingWeight).toBe(7.5);
    for (let now = 2_000; bucket.waiting > 0; now += 1_000) tick(bucket, replica, [], instant(now));
    expect(bucket.waitingWeight).toBe(0);
  });
});

atOrigins('a refusal names what holds the call:', (instant) => {
  const refused = (bucket: Bucket, wish: Wish): unknown =>
    admit(bucket, call('x', { ...plenty, ...lane, maxWaitMs: 0, ...wish }), replica, instant(1_020));

  test.each([
    ['ceiling_minute', returned('ceiling_minute')],
    ['ceiling_day', returned('ceiling_day')],
    ['closed', returned('backoff')],
    ['closed', { kind: 'throttled', closeMs: 20_000, requeue: true, sleepMs: 0 } as const],
  ])('%s', (heldBy, back) => {
    expect(refused(asleep(instant, back, 0), {})).toMatchObject({
      kind: 'refused',
      reason: 'wait_too_long',
      heldBy,
    });
  });

  test.each([
    ['requests', 'requests'],
    ['images', 'requests'],
    ['tokens', 'tokens'],
    ['cost', 'cost'],
    ['requests_day', 'upstream_day'],
    ['tokens_day', 'upstream_day'],
  ] as const)('a full meter of %s: %s', (meter, heldBy) => {
    const full = {
      setting: { meters: [{ meter, limit: 1, windowMs: 60_000 }], learn: true, probe: 0 },
      costs: { [meter]: 1 },
    };
    const { bucket } = bucketWith(instant, 1, full);
    expect(refused(bucket, full)).toMatchObject({ reason: 'wait_too_long', heldBy });
  });

  test('serialized', () => {
    const { bucket } = bucketWith(instant, 1, { ...plenty, ...lane, maxInFlight: 1 });
    expect(refused(bucket, { maxInFlight: 1 })).toMatchObject({
      reason: 'wait_too_long',
      heldBy: 'serialized',
    });
  });

  test('queue', () => {
    const { bucket } = bucketWith(instant, 2, { ...plenty, ...lane, maxInFlight: 1 });
    expect(refused(bucket, { maxInFlight: 1, maxQueued: 1 })).toMatchObject({
      reason: 'queue_full',
      heldBy: 'queue',
    });
  });

  test('the longest of several', () => {
    const bucket = asleep(instant, returned('ceiling_minute', 30_000), 0);
    const [other] = admit(bucket, call('o', { ...plenty, lane: 'other' }), replica, instant(1_010)).effects
      .grants;
    const closes = { kind: 'throttled', closeMs: 40_000, requeue: false, sleepMs: 0 } as const;
    settle(bucket, other?.lease ?? '', closes, null, instant(1_010));
    expect(refused(bucket, {})).toMatchObject({ heldBy: 'closed', retryInMs: 39_990 });
  });
});

function never(): never {
  throw new Error('no such lane');
}
