/** A sleeping lane knows its reason: a change of that reason wakes the lane, and refusals name it. */
import { describe, expect, test } from '@jest/globals';
import { laneKey, leaseToken } from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { asleepUntil } from '../../../src/limiter/policy/lanes.policy.ts';
import type { LaneSetting, Settlement } from '../../../src/limiter/limiter.ts';
import { slotTaken, maxOtherLimitsMs, settle } from '../../../src/limiter/policy/settle.policy.ts';
import { reconfigure } from '../../../src/limiter/policy/scheduler.policy.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { admit, bucketWith, call, newBucket, replica, tick } from './scheduling.ts';
import type { AdmissionOptions } from '../../support/admission.ts';

const plenty: AdmissionOptions = { limit: 1_000 };
const lane: LaneSetting = { weight: 1, maxInFlight: null, perMinute: null, ceilingTag: '2.none' };
const { setting } = call('any', plenty);

/** A lane with `waiting` calls whose first grant came back like this. */
function asleep(instant: Instant, back: Settlement, waiting: number): Bucket {
  const { bucket, grants } = bucketWith(instant, 1, { ...plenty, ...lane });
  settle(
    bucket,
    { lease: leaseToken(grants[0]?.lease ?? ''), settlement: back, lesson: null },
    instant(1_010),
  );
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
const change = (of: Partial<LaneSetting>) => ({ setting, lanes: [{ ...lane, lane: laneKey('l'), ...of }] });

atOrigins('a sleeping lane', (instant) => {
  describe.each(['ceiling_minute', 'ceiling_day'] as const)('refused by its %s', (because) => {
    test('wakes when the limits of its ceiling change, and sends one call until the number of free slots is reported', () => {
      const bucket = asleep(instant, returned(because), 3);
      expect(tick(bucket, { replica, leases: [] }, instant(1_500)).grants).toEqual([]);
      const { grants } = reconfigure(bucket, change({ ceilingTag: '5.none' }), instant(2_000));
      expect(grants.map(({ ticket }) => ticket)).toEqual(['t0']);
      const reported = slotTaken(
        bucket,
        { lease: leaseToken(grants[0]?.lease ?? ''), edge: { slots: 2, nextSlotMs: 9_000 } },
        instant(2_001),
      );
      expect(reported.grants.map(({ ticket }) => ticket)).toEqual(['w0', 'w1']);
    });

    test('wakes when a call enters under other ceiling limits, and still grants the earlier call first', () => {
      const bucket = asleep(instant, returned(because), 1);
      const reply = admit(
        bucket,
        call('new', { ...plenty, ...lane, ceilingTag: '5.none' }),
        replica,
        instant(2_000),
      );
      expect(reply).toMatchObject({ kind: 'queued', ahead: 1 });
      expect(reply.effects.grants.map(({ ticket }) => ticket)).toEqual(['t0']);
    });

    test('sleeps only for a moment when its last slot was taken under ceiling limits it no longer has', () => {
      const bucket = asleep(instant, returned(because), 1);
      const { grants } = reconfigure(bucket, change({ ceilingTag: '50.none' }), instant(2_000));
      const edge = { slots: 0, nextSlotMs: 50_000, ceilingTag: lane.ceilingTag };
      expect(
        slotTaken(bucket, { lease: leaseToken(grants[0]?.lease ?? ''), edge }, instant(2_001)).grants,
      ).toEqual([]);
      const wakes = instant(2_001 + maxOtherLimitsMs);
      expect(asleepUntil(bucket.lanes.get(laneKey('l')) ?? never())).toBe(wakes);
      expect(tick(bucket, { replica, leases: [] }, wakes).grants.map(({ ticket }) => ticket)).toEqual(['w0']);
    });

    test('keeps sleeping when a reload leaves its ceiling unchanged', () => {
      const bucket = asleep(instant, returned(because), 1);
      const settled = reconfigure(bucket, change({ weight: 3, maxInFlight: 7 }), instant(2_000));
      const entered = admit(bucket, call('new', { ...plenty, ...lane }), replica, instant(2_000));
      expect([...settled.grants, ...entered.effects.grants]).toEqual([]);
      expect(asleepUntil(bucket.lanes.get(laneKey('l')) ?? never())).toBe(instant(51_010));
    });

    // A replica that does not have the new limits yet asked under the old ones, or its report arrives late.
    test('sleeps only for a moment when it was refused under ceiling limits it no longer has', () => {
      const { bucket, grants } = bucketWith(instant, 1, { ...plenty, ...lane });
      reconfigure(bucket, change({ ceilingTag: '50.none' }), instant(1_005));
      const late = { ...returned(because, 80_000_000), ceilingTag: lane.ceilingTag };
      settle(
        bucket,
        { lease: leaseToken(grants[0]?.lease ?? ''), settlement: late, lesson: null },
        instant(1_010),
      );
      const wakes = 1_010 + maxOtherLimitsMs;
      expect(tick(bucket, { replica, leases: [] }, instant(wakes - 1)).grants).toEqual([]);
      expect(tick(bucket, { replica, leases: [] }, instant(wakes)).grants).toHaveLength(1);
    });

    test('sleeps for the time stated under the new limits when those refuse it too', () => {
      const bucket = asleep(instant, returned(because), 0);
      const [grant] = reconfigure(bucket, change({ ceilingTag: '5.none' }), instant(2_000)).grants;
      settle(
        bucket,
        {
          lease: leaseToken(grant?.lease ?? ''),
          settlement: returned('ceiling_minute', 3_000),
          lesson: null,
        },
        instant(2_100),
      );
      expect(asleepUntil(bucket.lanes.get(laneKey('l')) ?? never())).toBe(instant(5_100));
      expect(tick(bucket, { replica, leases: [] }, instant(5_100)).grants).toHaveLength(1);
    });
  });

  // Two replicas ask the ceiling: its refusal of one call is on its way to the bucket while the other call gives its slot back.
  test.each(['ceiling_minute', 'ceiling_day'] as const)(
    'does not sleep for a refusal by its %s that may be older than a slot that came back, but for the next one',
    (because) => {
      const { bucket, grants } = bucketWith(instant, 2, { ...plenty, ...lane });
      const lease = (at: number) => leaseToken(grants[at]?.lease ?? '');
      settle(bucket, { lease: lease(0), settlement: { kind: 'dropped' }, lesson: null }, instant(1_010));
      const asksAgain = settle(
        bucket,
        { lease: lease(1), settlement: returned(because), lesson: null },
        instant(1_020),
      );
      expect(asksAgain.grants.map(({ ticket }) => ticket)).toEqual(['t1']);
      const again = leaseToken(asksAgain.grants[0]?.lease ?? '');
      const refused = settle(
        bucket,
        { lease: again, settlement: returned(because, 3_000), lesson: null },
        instant(1_030),
      );
      expect(refused.grants).toEqual([]);
      expect(asleepUntil(bucket.lanes.get(laneKey('l')) ?? never())).toBe(instant(4_030));
    },
  );

  test('wakes from a back-off when that ends, not when the limits of its ceiling change', () => {
    const bucket = asleep(instant, returned('ceiling_day', 80_000), 1);
    const other = admit(bucket, call('x', { ...plenty, lane: 'other' }), replica, instant(1_100)).effects
      .grants;
    settle(
      bucket,
      { lease: leaseToken(other[0]?.lease ?? ''), settlement: { kind: 'dropped' }, lesson: null },
      instant(1_100),
    );
    const [woken] = reconfigure(bucket, change({ ceilingTag: 'a' }), instant(1_200)).grants;
    settle(
      bucket,
      { lease: leaseToken(woken?.lease ?? ''), settlement: returned('backoff', 9_000), lesson: null },
      instant(1_200),
    );
    expect(reconfigure(bucket, change({ ceilingTag: 'b' }), instant(2_000)).grants).toEqual([]);
    expect(tick(bucket, { replica, leases: [] }, instant(10_199)).grants).toEqual([]);
    expect(tick(bucket, { replica, leases: [] }, instant(10_200)).grants).toHaveLength(1);
  });

  test('wakes when its ceiling changes although the last report said that no slot is free', () => {
    const { bucket, grants } = bucketWith(instant, 1, { ...plenty, ...lane });
    slotTaken(
      bucket,
      { lease: leaseToken(grants[0]?.lease ?? ''), edge: { slots: 0, nextSlotMs: 50_000 } },
      instant(1_010),
    );
    admit(bucket, call('w', { ...plenty, ...lane }), replica, instant(1_020));
    expect(reconfigure(bucket, change({ ceilingTag: 'none.none' }), instant(2_000)).grants).toHaveLength(1);
  });
});

atOrigins('a reconfigured bucket', (instant) => {
  test('creates no lane for settings of a lane that it does not know', () => {
    const bucket = newBucket(instant);
    reconfigure(bucket, change({ ceilingTag: '9.9' }), instant(1_000));
    expect(bucket.lanes.size).toBe(0);
  });

  test('applies a changed cap of calls in flight to waiting calls at once', () => {
    const { bucket, grants } = bucketWith(instant, 5, { ...plenty, ...lane, maxInFlight: 1 });
    expect(grants).toHaveLength(1);
    const more = reconfigure(bucket, change({ maxInFlight: 3 }), instant(1_100)).grants;
    expect(more.map(({ ticket }) => ticket)).toEqual(['t1', 't2']);
    reconfigure(bucket, change({ maxInFlight: 1 }), instant(1_200));
    const done = { kind: 'succeeded', spent: null } as const;
    expect(
      settle(
        bucket,
        { lease: leaseToken(grants[0]?.lease ?? ''), settlement: done, lesson: null },
        instant(1_300),
      ).grants,
    ).toEqual([]);
    expect(
      settle(
        bucket,
        { lease: leaseToken(more[0]?.lease ?? ''), settlement: done, lesson: null },
        instant(1_300),
      ).grants,
    ).toEqual([]);
    expect(
      settle(
        bucket,
        { lease: leaseToken(more[1]?.lease ?? ''), settlement: done, lesson: null },
        instant(1_300),
      ).grants,
    ).toHaveLength(1);
  });

  test('keeps the sum of the waiting weights right when weights change', () => {
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
        lanes: Object.entries(weights).map(([key, weight]) => ({ ...lane, lane: laneKey(key), weight })),
      },
      instant(1_000),
    );
    expect(bucket.waitingWeight).toBe(7.5);
    for (let now = 2_000; bucket.waiting > 0; now += 1_000)
      tick(bucket, { replica, leases: [] }, instant(now));
    expect(bucket.waitingWeight).toBe(0);
  });
});

atOrigins('a refusal', (instant) => {
  const refused = (bucket: Bucket, options: AdmissionOptions): unknown =>
    admit(bucket, call('x', { ...plenty, ...lane, maxWaitMs: 0, ...options }), replica, instant(1_020));

  test.each([
    ['ceiling_minute', returned('ceiling_minute')],
    ['ceiling_day', returned('ceiling_day')],
    ['closed', returned('backoff')],
    ['closed', { kind: 'throttled', closeMs: 20_000, requeue: true, sleepMs: 0 } as const],
  ])('names %s as what holds the call', (heldBy, back) => {
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
  ] as const)('that is due to a full meter of %s names %s as what holds the call', (meter, heldBy) => {
    const full = {
      setting: { meters: [{ meter, limit: 1, windowMs: 60_000 }], learn: true, probe: 0 },
      costs: { [meter]: 1 },
    };
    const { bucket } = bucketWith(instant, 1, full);
    expect(refused(bucket, full)).toMatchObject({ reason: 'wait_too_long', heldBy });
  });

  test('names serialized as what holds the call when its lane has its maximum in flight', () => {
    const { bucket } = bucketWith(instant, 1, { ...plenty, ...lane, maxInFlight: 1 });
    expect(refused(bucket, { maxInFlight: 1 })).toMatchObject({
      reason: 'wait_too_long',
      heldBy: 'serialized',
    });
  });

  test('names queue as what holds the call when its lane is full', () => {
    const { bucket } = bucketWith(instant, 2, { ...plenty, ...lane, maxInFlight: 1 });
    expect(refused(bucket, { maxInFlight: 1, maxQueued: 1 })).toMatchObject({
      reason: 'queue_full',
      heldBy: 'queue',
    });
  });

  test('names the longer one of two reasons that hold the call', () => {
    const bucket = asleep(instant, returned('ceiling_minute', 30_000), 0);
    const [other] = admit(bucket, call('o', { ...plenty, lane: 'other' }), replica, instant(1_010)).effects
      .grants;
    const closes = { kind: 'throttled', closeMs: 40_000, requeue: false, sleepMs: 0 } as const;
    settle(
      bucket,
      { lease: leaseToken(other?.lease ?? ''), settlement: closes, lesson: null },
      instant(1_010),
    );
    expect(refused(bucket, {})).toMatchObject({ heldBy: 'closed', retryInMs: 39_990 });
  });
});

function never(): never {
  throw new Error('no such lane');
}
