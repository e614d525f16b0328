/** What no configuration says: windows that are learned from responses, and an upstream that closes amid a steady load. Virtual time. */
import { describe, expect, test } from '@jest/globals';
import { origins } from '../../support/origins.ts';
import { model, run, wholeSeconds, type Range, type Scene } from './paced.ts';

async function timesOf(scene: Omit<Scene, 'wayMs' | 'serviceMs'>, originMs: number) {
  const { arrivals } = await run({ ...scene, wayMs: [2, 2], serviceMs: [8, 8], probe: 1 }, 1, originMs);
  const first = arrivals[0]?.at ?? 0;
  const times = (isIn: boolean): readonly number[] =>
    arrivals.filter(({ admitted }) => admitted === isIn).map(({ at }) => at - first);
  return { served: times(true), throttled: times(false) };
}

const comingOne = (calls: number): readonly number[] => [...Array(calls).keys(), 1_500, 2_500];

describe.each(origins)('an upstream with windows that are not configured, on $name', ({ ms }) => {
  test.each([
    [1, 10],
    [2, 10],
    [10, 20],
    [60, 30],
  ])(
    'whose window is %d s of the clock, is paced by what its responses say is left',
    async (seconds, limit) => {
      const windows = [{ requests: limit, seconds, kind: 'fixed' }] as const;
      const calls = comingOne(4 * limit);
      const { served, throttled } = await timesOf({ windows, dialect: wholeSeconds, calls }, ms);
      expect(served).toHaveLength(calls.length);
      // The first calls are sent as they come; then at most one call per window is throttled because a window does not drain.
      const windowsNeeded = Math.ceil(served.length / limit);
      // Times are stated in whole seconds, so up to one second is lost where a window begins.
      expect(served.at(-1)).toBeLessThanOrEqual((windowsNeeded - 1) * (seconds * 1_000 + 1_000));
      expect(throttled.filter((at) => at > seconds * 1_000).length).toBeLessThanOrEqual(windowsNeeded - 1);
    },
  );
});

/** A bucket of 6,000 a minute is full for everybody between these times, and says so. */
const closed: Range = [58_000, 70_000];
const [closesAt, opensAt] = closed;

/** A number of calls that come at one time. Milliseconds. */
type Crowd = readonly [at: number, calls: number];

const steady: readonly Crowd[] = Array.from({ length: 116 }, (_, n) => [n * 500, 1]);
const early: Crowd = [0, 120];

describe.each(origins)('after an upstream was closed, on $name', ({ ms }) => {
  test.each<[string, readonly Crowd[]]>([
    ['under steady load, with a burst as it closes', [...steady, [closesAt + 5, 100]]],
    ['with one burst before and one while it is closed', [early, [60_150, 120]]],
    ['with one call that finds it closed, and a burst', [early, [60_150, 1], [60_400, 119]]], // prettier-ignore
    ['with a few calls before and a burst while it is closed', [[57_900, 5], [closesAt + 1_000, 150]]], // prettier-ignore
  ])('%s, sending goes on at the stated time and at the rate of the meter', async (_what, crowds) => {
    const calls = crowds.flatMap(([at, count]) => Array<number>(count).fill(at));
    const stated = [{ meter: 'requests', limit: 6_000, windowMs: 60_000 }] as const;
    const windows = [{ requests: 6_000, seconds: 60, kind: 'leaky' }] as const;
    const scene = { windows, closed, dialect: model, stated, calls };
    const { arrivals } = await run({ ...scene, wayMs: [0, 0], serviceMs: [20, 20] }, 1, ms);
    const times = arrivals.map(({ at }) => at);
    const after = times.filter((at) => at >= opensAt);
    expect(after[0]).toBeLessThanOrEqual(opensAt + 50);
    // Waiting calls leave at 100 a second.
    const waited = crowds.at(-1)?.[1] ?? 0;
    expect(after.length).toBeGreaterThanOrEqual(waited);
    expect((after[waited - 1] ?? 0) - opensAt).toBeLessThanOrEqual(waited * 10 + 100);
    const first = times.find((at) => at >= closesAt) ?? 0;
    expect(times.filter((at) => at > first + 20 && at < opensAt)).toEqual([]);
  });
});
