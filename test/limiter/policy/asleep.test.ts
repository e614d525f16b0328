/** A sleeping lane knows its reason: a change of that reason wakes the lane, and refusals name it. */
import { describe, expect, test } from '@jest/globals';
import { asleepUntil } from '../../../src/limiter/policy/lanes.policy.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import { maxOtherLimitsMs } from '../../../src/limiter/policy/scheduler.policy.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { dropped, names, returned, TestBucket, throttled } from './scheduling.ts';

const plenty = { limit: 1_000, ceilingTag: '2.none' };

/** A lane of which the first call, `t0`, came back like this, with so many behind it. */
function asleep(instant: Instant, back: Settlement, waiting: number): TestBucket {
  const line = new TestBucket(instant, plenty);
  line.enter(['t0']);
  line.at(1_010).settle('t0', back);
  line.at(1_020).enter(names(waiting, 'w'));
  return line;
}

atOrigins('a sleeping lane', (instant) => {
  const wakesAt = (line: TestBucket): number => (asleepUntil(line.lane()) ?? NaN) - instant(0);

  describe.each(['ceiling_minute', 'ceiling_day'] as const)('refused by its %s', (because) => {
    test('wakes when the limits of its ceiling change, and sends one call until the number of free slots is reported', () => {
      const line = asleep(instant, returned(because), 3).at(1_500);
      expect(line.tick()).toEqual([]);
      expect(line.at(2_000).reconfigure({ l: { ceilingTag: '5.none' } })).toEqual(['t0']);
      expect(line.at(2_001).slotTaken('t0', { slots: 2, nextSlotMs: 9_000 })).toEqual(['w0', 'w1']);
    });

    test('keeps sleeping when a reload leaves its ceiling unchanged', () => {
      const line = asleep(instant, returned(because), 1).at(2_000);
      const left = [...line.reconfigure({ l: { weight: 3, maxInFlight: 7 } }), ...line.enter(['new'])];
      expect([left, wakesAt(line)]).toEqual([[], 51_010]);
    });

    // A replica that does not have the new limits yet asked under the old ones, or its report arrives late.
    test('sleeps only for a moment when it was refused under ceiling limits it no longer has', () => {
      const line = new TestBucket(instant, plenty);
      line.enter(['t0']);
      line.at(1_005).reconfigure({ l: { ceilingTag: '50.none' } });
      line.at(1_010).settle('t0', { ...returned(because, 80_000_000), ceilingTag: plenty.ceilingTag });
      expect(line.at(1_009 + maxOtherLimitsMs).tick()).toEqual([]);
      expect(line.at(1_010 + maxOtherLimitsMs).tick()).toEqual(['t0']);
    });

    // Two replicas ask the ceiling: its refusal of one call is on its way to the bucket while the other call gives its slot back.
    test('does not sleep for a refusal that may be older than a slot that came back, but for the next one', () => {
      const line = new TestBucket(instant, plenty);
      line.enter(['t0', 't1']);
      line.at(1_010).settle('t0', dropped);
      expect(line.at(1_020).settle('t1', returned(because))).toEqual(['t1']);
      expect(line.at(1_030).settle('t1', returned(because, 3_000))).toEqual([]);
      expect(wakesAt(line)).toBe(4_030);
    });
  });
});

atOrigins('a refusal', (instant) => {
  test.each([
    ['ceiling_minute', returned('ceiling_minute')],
    ['ceiling_day', returned('ceiling_day')],
    ['closed', returned('backoff')],
    ['closed', throttled(20_000, { requeue: true })],
  ])('names %s as what holds the call', (heldBy, back) => {
    const refused = asleep(instant, back, 0).admit('x', { maxWaitMs: 0 });
    expect(refused).toMatchObject({ kind: 'refused', reason: 'wait_too_long', heldBy });
  });

  test.each([
    ['requests', 'requests'],
    ['images', 'requests'],
    ['tokens', 'tokens'],
    ['cost', 'cost'],
    ['requests_day', 'upstream_day'],
    ['tokens_day', 'upstream_day'],
  ] as const)('that is due to a full meter of %s names %s as what holds the call', (meter, heldBy) => {
    const meters = [{ meter, limit: 1, windowMs: 60_000 }];
    const line = new TestBucket(instant, { meters, costs: { [meter]: 1 }, maxWaitMs: 0 });
    line.enter(['t0']);
    expect(line.admit('x')).toMatchObject({ reason: 'wait_too_long', heldBy });
  });

  test.each([
    ['serialized', 'wait_too_long', { maxWaitMs: 0 }],
    ['queue', 'queue_full', { maxQueued: 1 }],
  ])('names %s as what holds the call of a lane with its maximum in flight: %s', (heldBy, reason, more) => {
    const line = new TestBucket(instant, { ...plenty, maxInFlight: 1 });
    line.enter(['t0', 't1']);
    expect(line.at(1_020).admit('x', more)).toMatchObject({ reason, heldBy });
  });

  test('names the longer one of two reasons that hold the call', () => {
    const line = asleep(instant, returned('ceiling_minute', 30_000), 0).at(1_010);
    line.enter(['o'], { lane: 'other' });
    line.settle('o', throttled(40_000));
    expect(line.at(1_020).admit('x', { maxWaitMs: 0 })).toMatchObject({
      heldBy: 'closed',
      retryInMs: 40_240,
    });
  });
});
