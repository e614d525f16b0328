import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { busiest, headroom, rehearsed, replay } from '../../src/activity/headroom.policy.ts';
import type { ReplayedLane, ReplayedWindow, Scene } from '../../src/activity/headroom.policy.ts';
import { course, patternOf } from './room.ts';

const pause = () => Promise.resolve();
const steady = (perSecond: number, seconds = 600) => Array.from({ length: seconds }, () => perSecond);
const quiet = (seconds = 600) => steady(0, seconds);
/** Ten minutes with so many arrivals in one second. */
const burst = (count: number, at = 0) => quiet().with(at, count);
const window = { windowMs: 60_000, perCall: 1, usedBefore: 0 };
const leaky = (limit: number, windowMs = 60_000): ReplayedWindow => ({
  ...window,
  limit,
  windowMs,
  kind: 'leaky',
});
const rolling = (...given: Parameters<typeof leaky>): ReplayedWindow => ({
  ...leaky(...given),
  kind: 'rolling',
});
const lane = (arrivals: readonly number[], changes: Partial<ReplayedLane> = {}): ReplayedLane => ({
  arrivals,
  own: [],
  bucket: [],
  weight: 1,
  grows: true,
  ...changes,
});
const scene = (lanes: readonly ReplayedLane[], changes: Partial<Scene> = {}): Scene => ({
  lanes,
  startsAt: 0,
  maxWaitMs: 75_000,
  maxQueued: 1_000,
  ...changes,
});
const underCeiling = (arrivals: readonly number[], perMinute: number, maxWaitMs = 45_000): Scene =>
  scene([lane(arrivals, { own: [rolling(perMinute)] })], { maxWaitMs });
/** A burst through one bucket of these windows. */
const throughBucket = (count: number, windows: readonly ReplayedWindow[], changes: Partial<Scene> = {}) =>
  scene([lane(burst(count), { bucket: windows })], changes);

const ofClock: readonly ReplayedWindow[] = [{ ...leaky(10), kind: 'fixed' }];

describe('replaying arrivals against the limits,', () => {
  test.each<[string, Scene, longestWaitMs: number, refusedRatio: number]>([
    ['traffic below the ceiling does not wait', underCeiling(steady(8), 500), 0, 0],
    ['half of a burst leaves a minute later', underCeiling(burst(1_000, 100), 500, 600_000), 60_000, 0],
    ['or is refused when it may not wait so long', underCeiling(burst(1_000, 100), 500), 0, 0.5],
    ['a bucket passes its capacity, then its rate', throughBucket(60, [leaky(40, 20_000)]), 10_000, 0],
    ['a call of two windows waits for both', throughBucket(30, [rolling(3, 1_000), rolling(100)]), 9_000, 0],
    ['more units find less room', throughBucket(30, [{ ...leaky(600), perCall: 30 }]), 30_000, 0],
    ['a window of the clock begins anew', throughBucket(20, ofClock, { startsAt: 50 }), 10_000, 0],
    ['one at a time as fast as answered', scene([lane(burst(10), { own: [leaky(0.5, 1_000)] })]), 19_000, 0],
  ])('%s', (_, played, longestWaitMs, refusedRatio) =>
    expect(replay(played, 1)).toEqual({ longestWaitMs, refusedRatio }),
  );

  test('calls beyond those that may wait are refused', () =>
    expect(replay(throughBucket(200, [leaky(60)], { maxQueued: 20 }), 1).refusedRatio).toBeCloseTo(0.6, 2));

  test('workspaces that wait for one bucket share its room by weight', () => {
    const bucket = [leaky(60)];
    const [light, heavy] = [lane(burst(100), { bucket }), lane(burst(100), { bucket, weight: 4 })];
    const still = (of: ReplayedLane): ReplayedLane => ({ ...of, grows: false });
    const waited = (...lanes: readonly ReplayedLane[]) =>
      replay(scene(lanes, { maxWaitMs: 600_000 }), 1).longestWaitMs;
    expect(waited(light, still({ ...heavy, weight: 1 }))).toBe(waited(light, still(heavy)));
    expect(waited(still(light), heavy)).toBeLessThan(waited(light, still(heavy)));
    expect(waited(light)).toBeLessThan(waited(light, still(heavy)));
  });

  const upTo = (max: number) => fc.integer({ min: 1, max });
  const arrivals = fc.array(fc.nat(30), { minLength: 1, maxLength: 120 });
  test('more traffic never means that more is sent than there was, nor fewer refusals', () =>
    fc.assert(
      fc.property(arrivals, arrivals, upTo(900), fc.nat(60), (one, two, limit, wait) => {
        const bucket = [leaky(100)];
        const lanes = [lane(one, { own: [rolling(limit)], bucket }), lane(two, { bucket, grows: false })];
        const maxWaitMs = wait * 1_000;
        const both = scene(lanes, { maxWaitMs });
        const [once, twice] = [replay(both, 1), replay(both, 2)];
        expect(once.longestWaitMs).toBeLessThanOrEqual(maxWaitMs);
        expect(once.refusedRatio).toBeGreaterThanOrEqual(0);
        expect(twice.refusedRatio).toBeGreaterThanOrEqual(once.refusedRatio - 1e-6);
      }),
    ));

  const aMinute = fc.array(fc.nat({ max: 50 }), { minLength: 60, maxLength: 60 });
  test('no 60 seconds pass more than the ceiling', () =>
    fc.assert(
      fc.property(aMinute, upTo(500), (own, perMinute) => {
        const total = own.reduce((sum, n) => sum + n, 0);
        const { refusedRatio } = replay(underCeiling(own, perMinute, 0), 1);
        expect(total * (1 - refusedRatio)).toBeLessThanOrEqual(perMinute + 1e-3);
      }),
    ));
});

describe('headroom', () => {
  test('says how full the busiest minute was and how far traffic can grow', async () => {
    const own = [...quiet(1_000), ...steady(5, 60), ...quiet(2_540)];
    const result = await headroom(underCeiling(own, 500), 0, pause);
    expect(result).toMatchObject({ busiestMinute: 300, usedRatio: 0.6, now: { longestWaitMs: 0 } });
    expect(result.doubled.longestWaitMs).toBeGreaterThan(0);
    expect(result.growth).toBeGreaterThan(1.8);
    expect(result.growth).toBeLessThan(4);
  });

  test('is unknown without limits or traffic, and never above 0 while calls are refused', async () => {
    expect(await headroom(scene([lane(steady(5))]), 0, pause)).toMatchObject({
      usedRatio: null,
      growth: null,
    });
    expect((await headroom(underCeiling(quiet(), 500), 0, pause)).growth).toBeNull();
    expect((await headroom(underCeiling(steady(1), 500), 1, pause)).growth).toBe(0);
    expect((await headroom(underCeiling(steady(20), 500), 0, pause)).growth).toBe(1);
  });

  test('uses any 60 consecutive seconds as the busiest minute, not a minute of the clock', () =>
    expect(busiest(quiet(180).with(50, 10).with(109, 10).with(110, 5))).toBe(20));
});

test('what more or less traffic would meet is said, and what half the limits would do', async () => {
  const found = await rehearsed(underCeiling(steady(5), 500), pause);
  expect(found.map(({ times, limits, refusedRatio }) => [times, limits, refusedRatio > 0])).toEqual([
    [0.5, 1, false],
    [1, 1, false],
    [1.1, 1, false],
    [1.25, 1, false],
    [2, 1, true],
    [1, 0.5, true],
  ]);
  expect(await rehearsed(scene([lane(steady(5))]), pause)).toEqual([]);
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
