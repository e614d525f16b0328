/** A replica's estimate of the time at Redis, on which the order of calls over all replicas rests. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { sequencePerMs } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { StoreClock } from '../../../src/limiter/redis/store-clock.ts';
import { origins } from '../../support/origins.ts';

/** The clock of Redis less that of this process. Milliseconds. */
const aheadMs = 1.79e12;

/** Replies that took `thereMs` to Redis and `backMs` from it; sent at the given times. */
function clockAfter(
  replies: readonly (readonly [sentAt: number, thereMs: number, backMs: number])[],
): StoreClock {
  const clock = new StoreClock();
  for (const [sentAt, thereMs, backMs] of replies) {
    clock.note(sentAt + thereMs + aheadMs, sentAt, sentAt + thereMs + backMs);
  }
  return clock;
}

test('the clock of the store is unknown before the first reply', () => {
  expect(new StoreClock().at(1_000)).toBeNull();
});

describe.each(origins)('the clock of the store, on $name', ({ ms: begin }) => {
  test('is wrong by at most half of the fastest round trip', () => {
    const delay = fc.double({ min: 0, max: 200, noNaN: true });
    const reply = fc.tuple(fc.nat(60_000), delay, delay);
    fc.assert(
      fc.property(fc.array(reply, { minLength: 1, maxLength: 30 }), (replies) => {
        const inTime = replies
          .map(([at, there, back]) => [begin + at, there, back] as const)
          .toSorted(
            ([one, there, back], [other, there2, back2]) => one + there + back - other - there2 - back2,
          );
        const clock = clockAfter(inTime);
        const fastest = Math.min(...replies.map(([, there, back]) => there + back));
        const asked = begin + 61_000;
        const driftMs = 61_000 * 1e-4;
        expect(Math.abs((clock.at(asked) ?? NaN) - asked - aheadMs)).toBeLessThanOrEqual(
          (fastest + driftMs) / 2 + 0.01,
        );
      }),
    );
  });

  test('is taken from a slower round trip when the fast one was long ago, and not from a much slower one', () => {
    const hour = begin + 3_600_000;
    const slower = clockAfter([
      [begin, 1, 1],
      [hour, 60, 20],
    ]);
    expect(slower.at(hour + 1_000)).toBeCloseTo(hour + 1_000 + 20 + aheadMs, 1);
    const soon = clockAfter([
      [begin, 1, 1],
      [begin + 31_000, 60, 20],
    ]);
    expect(soon.at(begin + 32_000)).toBeCloseTo(begin + 32_000 + aheadMs, 1);
  });
});

test('the clock of the store follows Redis’ clock when that is set forwards or back', () => {
  for (const setBy of [-3_600_000, -100, 100, 3_600_000]) {
    const clock = clockAfter([[1_000, 1, 1]]);
    expect(clock.at(2_000)).toBe(2_000 + aheadMs);
    clock.note(2_501 + aheadMs + setBy, 2_500, 2_502);
    expect(clock.at(3_000)).toBe(3_000 + aheadMs + setBy);
  }
});

test('the clock of the store gives later arrivals later times, however its estimate changes between them', () => {
  const clock = clockAfter([[1_000, 60, 0]]);
  const before = clock.at(1_100) ?? NaN;
  expect(before).toBe(1_100 + aheadMs + 30);
  clock.note(1_101 + aheadMs, 1_100, 1_102);
  const later = [1_100.02, 1_100.04, 1_105, 1_140].map((at) => clock.at(at) ?? NaN);
  const positions = [before, ...later].map((time) => Math.floor(time * sequencePerMs));
  expect(new Set(positions).size).toBe(positions.length);
  expect(positions).toEqual(positions.toSorted((one, other) => one - other));
  expect(later.at(-1)).toBe(1_140 + aheadMs);
  // An earlier arrival that is asked for later still gets the earlier time.
  expect(clock.at(1_139)).toBeLessThan(1_140 + aheadMs);
  expect(clock.at(1_140)).toBe(1_140 + aheadMs);
});
