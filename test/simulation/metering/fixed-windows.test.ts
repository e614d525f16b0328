/**
 * Windows that the upstream's clock begins (`kind: fixed`), on virtual time: calls of a full window leave just after the next one has
 * begun, and must not meet the old one because of their way, of busy replicas or of clocks that differ. Clocks may differ by more than
 * a little where the responses state when the window ends.
 */
import { describe, expect, test } from '@jest/globals';
import type { Fleet } from './scene.ts';
import { busy, forms, inCrowds, measure, windowsNeeded, type Way } from './stated-windows.ts';

test.each<[string, Way]>([
  ['a near upstream and a second', { seconds: 1, wayMs: [1, 8] }],
  ['a way of 1 to 60 ms', { seconds: 2, wayMs: [1, 60] }],
  ['a way of 1 to 150 ms', { seconds: 10, wayMs: [1, 150] }],
  ['an upstream far away', { seconds: 2, wayMs: [100, 140] }],
  ['three busy replicas', { seconds: 2, wayMs: [1, 20], fleet: busy }],
  ['three busy replicas and a minute', { seconds: 60, wayMs: [1, 150], fleet: busy }],
  // A sixtieth of the window is kept free, at least 25 ms and at most a second.
  ['a clock that is 20 ms behind', { seconds: 1, wayMs: [1, 8], behindMs: 20 }],
  ['a clock that is 150 ms behind', { seconds: 10, wayMs: [1, 8], behindMs: 150 }],
  ['a clock that is 900 ms behind', { seconds: 60, wayMs: [1, 8], behindMs: 900 }],
  ['a clock that is 10 ms ahead', { seconds: 1, wayMs: [1, 8], behindMs: -10 }],
])('no call is refused with %s', (_, way) => {
  const measured = Array.from({ length: 10 }, (_, seed) => measure(way, seed));
  expect(measured.map(({ refused }) => refused)).toEqual(Array(10).fill(0));
  for (const { windows } of measured) expect(windows).toBeLessThanOrEqual((windowsNeeded - 1) * 1.05);
});

const skews = [-90_000, -2_000, 2_000, 30_000];
const skewed = skews.flatMap((behindMs) =>
  forms.flatMap((stated) => [
    { behindMs, stated, seconds: 60 },
    // Of a second more or less of ten a tenth would be lost: resets in whole seconds correct no such window.
    ...(stated === 'milliseconds' ? [{ behindMs, stated, seconds: 10 }] : []),
  ]),
);

describe.each(skewed)(
  'a clock that is $behindMs ms behind, where responses state the end of a window of $seconds s in $stated,',
  (skew) => {
    test.each<[string, Fleet | undefined]>([
      ['one process', undefined],
      ['three busy replicas', busy],
    ])('refuses no call of %s, and wastes no window', (_, fleet) => {
      const way = { ...skew, wayMs: [1, 8] as const, ...(fleet === undefined ? {} : { fleet }) };
      const burst = Array.from({ length: 5 }, (_seed, seed) => measure(way, seed));
      expect(burst.map(({ refused }) => refused)).toEqual(Array(5).fill(0));
      // The first window may be waited for by our own clock.
      for (const { windows } of burst) expect(windows).toBeLessThanOrEqual(windowsNeeded * 1.05);
      const crowds = Array.from({ length: 5 }, (_seed, seed) => measure({ ...way, comes: inCrowds }, seed));
      expect(crowds.map(({ refused }) => refused)).toEqual(Array(5).fill(0));
    });
  },
);
