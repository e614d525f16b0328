import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { busiest, headroom } from '../../src/activity/headroom.policy.ts';
import { replay } from '../../src/activity/replay.policy.ts';

const steady = (perSecond: number, seconds = 600) => Array.from({ length: seconds }, () => perSecond);
const quiet = (seconds = 600) => steady(0, seconds);
const ceiling = (requestsPerMinute: number) => ({ requestsPerMinute, bucket: null });

describe('replaying arrivals against the limits,', () => {
  test('traffic below the ceiling does not wait', () => {
    expect(replay(steady(8), quiet(), ceiling(500), 1, 45_000)).toEqual({
      longestWaitMs: 0,
      refusedRatio: 0,
    });
  });

  test('half of a burst of twice the ceiling leaves when the first half is a minute old', () => {
    const own = quiet();
    own[100] = 1_000;
    expect(replay(own, quiet(), ceiling(500), 1, 600_000).longestWaitMs).toBe(60_000);
    expect(replay(own, quiet(), ceiling(500), 1, 45_000)).toEqual({ longestWaitMs: 0, refusedRatio: 0.5 });
  });

  test('a bucket lets its capacity through at once and the rest at its rate', () => {
    const own = quiet();
    own[0] = 60;
    const limits = { requestsPerMinute: null, bucket: { capacity: 40, perSecond: 2 } };
    expect(replay(own, quiet(), limits, 1, 45_000)).toEqual({ longestWaitMs: 10_000, refusedRatio: 0 });
  });

  test('calls of others in front use their part of the bucket', () => {
    const [own, others] = [quiet(), quiet()];
    own[101] = 1;
    others[100] = 60;
    const limits = { requestsPerMinute: null, bucket: { capacity: 40, perSecond: 2 } };
    expect(replay(own, others, limits, 1, 45_000).longestWaitMs).toBe(10_000);
    expect(replay(own, quiet(), limits, 1, 45_000).longestWaitMs).toBe(0);
  });

  test('the part of steady traffic above the ceiling is refused once the queue is full', () => {
    const { longestWaitMs, refusedRatio } = replay(steady(20, 3_600), quiet(3_600), ceiling(600), 1, 45_000);
    expect(longestWaitMs).toBe(45_000);
    expect(refusedRatio).toBeGreaterThan(0.47);
    expect(refusedRatio).toBeLessThan(0.5);
  });

  test('more traffic never means fewer refusals, and no call waits longer than allowed', () => {
    const arrivals = fc.array(fc.nat({ max: 30 }), { minLength: 1, maxLength: 120 });
    fc.assert(
      fc.property(
        arrivals,
        arrivals,
        fc.integer({ min: 1, max: 900 }),
        fc.nat({ max: 60 }),
        (own, others, perMinute, wait) => {
          const limits = { requestsPerMinute: perMinute, bucket: { capacity: 40, perSecond: 5 } };
          const [once, twice] = [1, 2].map((factor) => replay(own, others, limits, factor, wait * 1_000));
          expect(once?.longestWaitMs).toBeLessThanOrEqual(wait * 1_000);
          expect(once?.refusedRatio).toBeGreaterThanOrEqual(0);
          const served = (ratio: number | undefined, factor: number) => (1 - (ratio ?? 0)) * factor;
          expect(served(twice?.refusedRatio, 2) + 1e-6).toBeGreaterThanOrEqual(0);
          expect(twice?.refusedRatio ?? 0).toBeGreaterThanOrEqual((once?.refusedRatio ?? 0) - 1e-6);
        },
      ),
    );
  });

  test('no 60 seconds pass more than the ceiling, a whole minute of calls at most one ceiling', () => {
    fc.assert(
      fc.property(
        fc.array(fc.nat({ max: 50 }), { minLength: 60, maxLength: 60 }),
        fc.integer({ min: 1, max: 500 }),
        (own, perMinute) => {
          const total = own.reduce((sum, n) => sum + n, 0);
          const { refusedRatio } = replay(
            own,
            own.map(() => 0),
            ceiling(perMinute),
            1,
            0,
          );
          expect(total * (1 - refusedRatio)).toBeLessThanOrEqual(perMinute + 1e-3);
        },
      ),
    );
  });
});

describe('headroom', () => {
  test('says how full the busiest minute was and how far traffic can grow', () => {
    const own = quiet(3_600);
    for (let i = 1_000; i < 1_060; i++) own[i] = 5;
    const result = headroom(own, quiet(3_600), ceiling(500), 45_000);
    expect(result).toMatchObject({ busiestMinute: 300, usedRatio: 0.6, now: { longestWaitMs: 0 } });
    expect(result.doubled.longestWaitMs).toBeGreaterThan(0);
    expect(result.growth).toBeGreaterThan(1.9);
    expect(result.growth).toBeLessThan(4);
  });

  test('is unknown without limits or traffic, and 0 when calls are refused already', () => {
    expect(headroom(steady(5), quiet(), { requestsPerMinute: null, bucket: null }, 45_000)).toMatchObject({
      usedRatio: null,
      growth: null,
    });
    expect(headroom(quiet(), quiet(), ceiling(500), 45_000).growth).toBeNull();
    expect(headroom(steady(20), quiet(), ceiling(500), 45_000).growth).toBe(0);
  });

  test('uses any 60 consecutive seconds as the busiest minute, not a minute of the clock', () => {
    const own = quiet(180);
    own[50] = 10;
    own[109] = 10;
    own[110] = 5;
    expect(busiest(own)).toBe(20);
  });
});
