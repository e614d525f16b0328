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

const usualSeconds = fc.constantFrom(1, 2, 5, 10, 30, 60, 300, 3_600);
const requests = fc.integer({ min: 2, max: 40 });
const single = fc.record({
  requests,
  seconds: fc.oneof(usualSeconds, fc.integer({ min: 1, max: 900 })),
  kind: fc.constantFrom<FoundWindow['kind']>('rolling', 'fixed', 'leaky'),
});
// Few windows of the clock are recorded: an unusual length is known within a twentieth, and that is no phase.
const usual = fc.record({ requests, seconds: usualSeconds, kind: fc.constant<FoundWindow['kind']>('fixed') });

/** Twice the limit, each call as early as `found` lets it go: how many are refused, and how long it takes. */
function burst(found: readonly FoundWindow[], truth: FoundWindow) {
  const [paced, counted] = [new Quota({ windows: found }), new Quota({ windows: [truth] })];
  let [at, refused] = [startAt, 0];
  for (let n = 0; n < truth.requests * 2; n++) {
    for (let asked = paced.ask(at); asked.kind === 'refused'; asked = paced.ask(at)) at += asked.waitMs;
    if (counted.ask(at).kind === 'refused') refused += 1;
  }
  return { refused, tookMs: at - startAt };
}

describe('what is learned of windows from 200 recorded responses', () => {
  test('lets a burst of twice the limit pass without a refusal, in 1.05 of the least time', () => {
    const ofKind = fc.oneof(
      usual,
      single.filter(({ kind }) => kind !== 'fixed'),
    );
    // Recordings with so few windows of the clock that a rolling window of a little less explains them too.
    const likeRolling = (
      [
        [34, 1, 13],
        [37, 300, 14],
        [35, 300, 13],
      ] as const
    ).map(([limit, seconds, seed]): [FoundWindow, number] => [
      { requests: limit, seconds, kind: 'fixed' },
      seed,
    ]);
    fc.assert(
      fc.property(ofKind, seeds, (window, seed) => {
        const { refused, tookMs } = burst(findWindows(record([window], randomFrom(seed))), window);
        expect(refused).toBe(0);
        expect(tookMs).toBeLessThanOrEqual(window.seconds * 1_050);
      }),
      { numRuns: 40, examples: likeRolling },
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
