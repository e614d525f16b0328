/** A dialect is generated, the simulator's quota enforces it, and the recorded responses must tell it again. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { findWindows, type FoundWindow, type Observation } from '../../tools/learn/windows.policy.ts';
import { randomFrom } from '../limiter/bucket-history.ts';
import { Quota } from '../../simulators/dialect/quota.ts';

const startAt = 1_800_000_000_000;

/** So many responses to a client that asks a little faster than it may. */
function record(windows: readonly FoundWindow[], draw: () => number): Observation[] {
  const quota = new Quota({ windows });
  const pace = Math.max(...windows.map(({ requests, seconds }) => (seconds * 1000) / requests));
  let at = startAt;
  return Array.from({ length: 200 }, () => {
    at += Math.max(1, Math.round(pace * (0.2 + 0.6 * draw())));
    const { kind } = quota.ask(at);
    if (kind === 'admitted') quota.done();
    return { at, isRefused: kind === 'refused' };
  });
}

const seeds = fc.integer({ min: 1, max: 1_000_000 });
const near = (found: number, truth: number): boolean => Math.abs(found - truth) <= truth * 0.05;

const single = fc.record({
  requests: fc.integer({ min: 2, max: 40 }),
  seconds: fc.oneof(fc.constantFrom(1, 2, 5, 10, 30, 60, 300, 3_600), fc.integer({ min: 1, max: 900 })),
  kind: fc.constantFrom<FoundWindow['kind']>('rolling', 'fixed', 'leaky'),
});

describe('what is learned of windows from 200 recorded responses', () => {
  test('is the limit and the length of a random window, within a twentieth', () => {
    fc.assert(
      fc.property(single, seeds, (window, seed) => {
        const found = findWindows(record([window], randomFrom(seed)));
        expect(found).toHaveLength(1);
        const [one] = found;
        if (one === undefined) return;
        const text = JSON.stringify({ window, one });
        expect([text, near(one.requests, window.requests)]).toEqual([text, true]);
        expect([text, near(one.seconds, window.seconds)]).toEqual([text, true]);
      }),
      { numRuns: 10 },
    );
  });

  test('is both of two windows that hold at once', () => {
    const windows = [
      { requests: 4, seconds: 2, kind: 'rolling' },
      { requests: 20, seconds: 30, kind: 'rolling' },
    ] as const;
    const quota = new Quota({ windows });
    const draw = randomFrom(3);
    let at = startAt;
    const observations = Array.from({ length: 200 }, (_, index) => {
      at += Math.round((index % 40 < 30 ? 300 : 2_500) * (0.5 + draw()));
      const { kind } = quota.ask(at);
      if (kind === 'admitted') quota.done();
      return { at, isRefused: kind === 'refused' };
    });
    const found = findWindows(observations);
    expect(found.map(({ requests, kind }) => [requests, kind])).toEqual([
      [4, 'rolling'],
      [20, 'rolling'],
    ]);
    expect(found.map(({ seconds }, index) => near(seconds, windows[index]?.seconds ?? 0))).toEqual([
      true,
      true,
    ]);
  });
});
