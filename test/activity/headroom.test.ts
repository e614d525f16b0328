import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { busiest, headroom, rehearsed, type InParts } from '../../src/activity/headroom.policy.ts';
import {
  replay,
  type ReplayedLane,
  type ReplayedWindow,
  type Scene,
} from '../../src/activity/replay.policy.ts';
import { course, patternOf } from './room.ts';

/** All parts at once. */
function atOnce<T>(parts: InParts<T>): T {
  for (;;) {
    const { done, value } = parts.next();
    if (done === true) return value;
  }
}

const steady = (perSecond: number, seconds = 600) => Array.from({ length: seconds }, () => perSecond);
const quiet = (seconds = 600) => steady(0, seconds);
const leaky = (limit: number, windowMs = 60_000): ReplayedWindow => ({
  limit,
  windowMs,
  kind: 'leaky',
  perCall: 1,
  usedBefore: 0,
});
const rolling = (limit: number, windowMs = 60_000): ReplayedWindow => ({
  ...leaky(limit, windowMs),
  kind: 'rolling',
});
const lane = (arrivals: readonly number[], changes: Partial<ReplayedLane> = {}): ReplayedLane => ({
  arrivals,
  ceiling: null,
  bucket: 0,
  weight: 1,
  perSecond: null,
  grows: true,
  ...changes,
});
const scene = (lanes: readonly ReplayedLane[], changes: Partial<Scene> = {}): Scene => ({
  lanes,
  ceilings: [],
  buckets: [[]],
  startsAt: 0,
  maxWaitMs: 75_000,
  maxQueued: 1_000,
  ...changes,
});
const underCeiling = (arrivals: readonly number[], perMinute: number, maxWaitMs = 45_000): Scene =>
  scene([lane(arrivals, { ceiling: 0 })], { ceilings: [[rolling(perMinute)]], maxWaitMs });
const fits = { longestWaitMs: 0, refusedRatio: 0 };

describe('replaying arrivals against the limits,', () => {
  test('traffic below the ceiling does not wait', () => {
    expect(replay(underCeiling(steady(8), 500), 1)).toEqual(fits);
  });

  test('half of a burst of twice the ceiling leaves when the first half is a minute old', () => {
    const own = quiet();
    own[100] = 1_000;
    expect(replay(underCeiling(own, 500, 600_000), 1).longestWaitMs).toBe(60_000);
    expect(replay(underCeiling(own, 500), 1)).toEqual({ longestWaitMs: 0, refusedRatio: 0.5 });
  });

  test('a bucket lets its capacity through at once and the rest at its rate', () => {
    const own = quiet();
    own[0] = 60;
    const bucket = { buckets: [[leaky(40, 20_000)]] };
    expect(replay(scene([lane(own)], bucket), 1)).toEqual({ longestWaitMs: 10_000, refusedRatio: 0 });
  });

  test('workspaces that wait for one bucket share its room by weight', () => {
    const own = quiet();
    own[0] = 100;
    const [light, heavy] = [lane(own), lane(own, { weight: 4, grows: false })];
    const bucket = { buckets: [[leaky(60)]], maxWaitMs: 600_000 };
    const waited = (lanes: readonly ReplayedLane[]) => replay(scene(lanes, bucket), 1).longestWaitMs;
    expect(waited([light, { ...heavy, weight: 1 }])).toBe(waited([light, heavy]));
    expect(
      waited([
        { ...light, grows: false },
        { ...heavy, grows: true },
      ]),
    ).toBeLessThan(waited([light, heavy]));
    expect(waited([light])).toBeLessThan(waited([light, heavy]));
  });

  test('a call of two windows waits for both, and one that takes more units finds less room', () => {
    const own = quiet();
    own[0] = 30;
    const both = scene([lane(own)], { buckets: [[rolling(3, 1_000), rolling(100)]] });
    expect(replay(both, 1).longestWaitMs).toBe(9_000);
    const tokens = scene([lane(own)], { buckets: [[{ ...leaky(600), perCall: 30 }]] });
    expect(replay(tokens, 1).longestWaitMs).toBe(30_000);
  });

  test('a window of the clock begins anew with each of its lengths', () => {
    const own = quiet();
    own[0] = 20;
    const fixed = { ...leaky(10), kind: 'fixed' as const };
    expect(replay(scene([lane(own)], { buckets: [[fixed]], startsAt: 50 }), 1).longestWaitMs).toBe(10_000);
  });

  test('calls in flight one at a time leave as fast as they are answered', () => {
    const own = quiet();
    own[0] = 10;
    expect(replay(scene([lane(own, { perSecond: 0.5 })]), 1).longestWaitMs).toBe(19_000);
  });

  test('calls beyond those that may wait are refused', () => {
    const own = quiet();
    own[0] = 200;
    const full = scene([lane(own)], { buckets: [[leaky(60)]], maxQueued: 20 });
    expect(replay(full, 1).refusedRatio).toBeCloseTo(120 / 200, 2);
  });

  test('more traffic never means that more is sent than there was, nor fewer refusals', () => {
    const arrivals = fc.array(fc.nat({ max: 30 }), { minLength: 1, maxLength: 120 });
    fc.assert(
      fc.property(
        arrivals,
        arrivals,
        fc.integer({ min: 1, max: 900 }),
        fc.nat({ max: 60 }),
        (one, two, limit, wait) => {
          const lanes = [lane(one, { ceiling: 0 }), lane(two, { grows: false })];
          const both = scene(lanes, {
            ceilings: [[rolling(limit)]],
            buckets: [[leaky(100)]],
            maxWaitMs: wait * 1_000,
          });
          const [once, twice] = [1, 2].map((factor) => replay(both, factor));
          expect(once?.longestWaitMs).toBeLessThanOrEqual(wait * 1_000);
          expect(once?.refusedRatio).toBeGreaterThanOrEqual(0);
          expect(twice?.refusedRatio ?? 0).toBeGreaterThanOrEqual((once?.refusedRatio ?? 0) - 1e-6);
        },
      ),
    );
  });

  test('no 60 seconds pass more than the ceiling', () => {
    fc.assert(
      fc.property(
        fc.array(fc.nat({ max: 50 }), { minLength: 60, maxLength: 60 }),
        fc.integer({ min: 1, max: 500 }),
        (own, perMinute) => {
          const total = own.reduce((sum, n) => sum + n, 0);
          const { refusedRatio } = replay(underCeiling(own, perMinute, 0), 1);
          expect(total * (1 - refusedRatio)).toBeLessThanOrEqual(perMinute + 1e-3);
        },
      ),
    );
  });
});

describe('headroom', () => {
  const none = { refused: 0 };

  test('says how full the busiest minute was and how far traffic can grow', () => {
    const own = quiet(3_600);
    for (let i = 1_000; i < 1_060; i++) own[i] = 5;
    const result = atOnce(headroom(underCeiling(own, 500), none));
    expect(result).toMatchObject({ busiestMinute: 300, usedRatio: 0.6, now: { longestWaitMs: 0 } });
    expect(result.doubled.longestWaitMs).toBeGreaterThan(0);
    expect(result.growth).toBeGreaterThan(1.8);
    expect(result.growth).toBeLessThan(4);
  });

  test('is unknown without limits or traffic, and never above 0 while calls are refused', () => {
    expect(atOnce(headroom(scene([lane(steady(5))]), none))).toMatchObject({ usedRatio: null, growth: null });
    expect(atOnce(headroom(underCeiling(quiet(), 500), none)).growth).toBeNull();
    expect(atOnce(headroom(underCeiling(steady(1), 500), { refused: 1 })).growth).toBe(0);
    expect(atOnce(headroom(underCeiling(steady(20), 500), none)).growth).toBe(1);
  });

  test('uses any 60 consecutive seconds as the busiest minute, not a minute of the clock', () => {
    const own = quiet(180);
    own[50] = 10;
    own[109] = 10;
    own[110] = 5;
    expect(busiest(own)).toBe(20);
  });
});

test('what more or less traffic would meet is said, and what half the limits would do', () => {
  const found = atOnce(rehearsed(underCeiling(steady(5), 500)));
  expect(found.map(({ times, limits, refusedRatio }) => [times, limits, refusedRatio > 0])).toEqual([
    [0.5, 1, false],
    [1, 1, false],
    [1.1, 1, false],
    [1.25, 1, false],
    [2, 1, true],
    [1, 0.5, true],
  ]);
  expect(atOnce(rehearsed(scene([lane(steady(5))])))).toEqual([]);
});

describe('headroom is kept by the gateway: of random traffic under random limits,', () => {
  // One of each kind of limit (`room.ts`); 200 with `SEEDS`, as `npm run verify:long` sets it. Ten are one test: a busy machine has its time for each.
  const count = Math.min(200, Number(process.env['SEEDS'] ?? 7));
  const all = Array.from({ length: count }, (_, seed) => seed);
  const batches = Array.from({ length: Math.ceil(count / 10) }, (_, n) => all.slice(10 * n, 10 * (n + 1)));

  test.each(batches.map((seeds) => [seeds[0], seeds.at(-1), seeds] as const))(
    'patterns %i to %i: as much more as it says is sent without a refusal, and a tenth more than that is not',
    async (_first, _last, seeds) => {
      const found = { judged: 0, untrue: [] as number[], shy: [] as number[], boastful: [] as number[] };
      for (const seed of seeds) {
        const pattern = patternOf(seed);
        const { refused, headroom: said } = await course(pattern, 1);
        const growth = said?.growth ?? 0;
        if (refused > 0) {
          if (growth > 0) found.boastful.push(seed);
          continue;
        }
        found.judged += 1;
        if ((await course(pattern, growth)).refused > 0) found.untrue.push(seed);
        if (growth < 10 && (await course(pattern, growth * 1.1)).refused === 0) found.shy.push(seed);
      }
      expect(found.boastful).toEqual([]);
      expect(found.judged).toBeGreaterThan(seeds.length / 2);
      expect(found.untrue).toEqual([]);
      expect(found.shy).toEqual([]);
    },
  );
});
