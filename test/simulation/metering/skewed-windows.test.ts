/**
 * Windows that no clock begins (`kind: rolling` and `leaky`), on virtual time, of an upstream whose clock differs from ours: what it states
 * of them, in whatever form, is read against its own `Date`.
 */
import { describe, expect, test } from '@jest/globals';
import { maxJitterMs } from '../../../src/limiter/policy/meter.policy.ts';
import type { Fleet } from './scene.ts';
import { busy, inCrowds, measure, windowsNeeded, type Way } from './stated-windows.ts';

/** Forms of a reset that name an instant; the others do not depend on a clock. */
const instants = ['epoch-seconds', 'epoch-milliseconds', 'date'] as const;
const skewed = [-90_000, 90_000].flatMap((behindMs) =>
  (['rolling', 'leaky'] as const).flatMap((kind) =>
    instants.map((stated) => ({ kind, behindMs, stated, seconds: 60 })),
  ),
);

describe.each(skewed)(
  'a $kind window of $seconds s behind a clock that is $behindMs ms behind, and is stated in $stated,',
  (skew) => {
    test.each<[string, Fleet | undefined]>([
      ['one process', undefined],
      ['three busy replicas', busy],
    ])('refuses no call of %s, and is used to its end', (_, fleet) => {
      const way: Way = { ...skew, wayMs: [1, 8], ...(fleet === undefined ? {} : { fleet }) };
      const burst = Array.from({ length: 3 }, (_seed, seed) => measure(way, seed));
      expect(burst.map(({ refused }) => refused)).toEqual(Array(3).fill(0));
      // A meter that leaves empty rests once before it drains.
      const restWindows = skew.kind === 'leaky' ? maxJitterMs / (skew.seconds * 1000) : 0;
      for (const { windows } of burst)
        expect(windows - restWindows).toBeLessThanOrEqual((windowsNeeded - 1) * 1.05);
      const crowds = Array.from({ length: 3 }, (_seed, seed) => measure({ ...way, comes: inCrowds }, seed));
      expect(crowds.map(({ refused }) => refused)).toEqual(Array(3).fill(0));
    });

    test('is learned as well as of a clock that agrees, where the configuration describes the fields only', () => {
      const way: Way = { ...skew, wayMs: [1, 8], isLearned: true };
      for (let seed = 0; seed < 3; seed += 1) {
        expect(measure(way, seed)).toEqual(measure({ ...way, behindMs: 0 }, seed));
        expect(measure({ ...way, comes: inCrowds }, seed)).toEqual(
          measure({ ...way, behindMs: 0, comes: inCrowds }, seed),
        );
      }
    });
  },
);
