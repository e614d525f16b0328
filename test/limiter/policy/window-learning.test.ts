/** The length of a window that no response states: it is learned from what successive responses say is left of it. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { learnedWindowMs } from '../../../src/limiter/policy/meter-quota.policy.ts';

const learn = (left: readonly (number | null)[]): number | null =>
  left.reduce((known: number | null, leftMs) => learnedWindowMs(known, leftMs), null);

describe('a window of unstated length', () => {
  test.each([
    ['as a second', [1_000, 1_000, 1_000], 1_000],
    ['as ten seconds, from the middle of a window on', [4_000, 2_000, 10_000, 9_000], 10_000],
    ['as a minute', [13_000, 60_000, 59_000], 60_000],
    ['as a minute that is stated as 61 s', [61_000], 60_000],
    ['as an hour', [12_000, 3_600_000, 3_599_000], 3_600_000],
    ['as unknown when no response says what is left', [null, null], null],
  ])('is learned %s', (_what, left, expected) => {
    expect(learn(left)).toBe(expected);
  });

  test('is learned, from 1 s on, as no shorter than it is and at most twice as long', () => {
    const windows = fc.integer({ min: 1, max: 3_600 });
    const shares = fc.array(fc.double({ min: 0.001, max: 1, noNaN: true }), { maxLength: 20 });
    fc.assert(
      fc.property(windows, shares, (seconds, before) => {
        const left = [...before, 1].map((share) => Math.ceil(share * seconds) * 1_000);
        const learned = learn(left) ?? 0;
        expect(learned).toBeGreaterThanOrEqual(seconds > 10 ? seconds * 1_000 - 1_000 : seconds * 1_000);
        expect(learned).toBeLessThanOrEqual(seconds * 2_000);
      }),
    );
  });
});
