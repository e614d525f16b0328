/** What no configuration says: windows that are learned from responses, and an upstream that closes amid a steady load. Virtual time. */
import { describe, expect, test } from '@jest/globals';
import { origins } from '../../support/origins.ts';
import { run, type Scene } from './paced-run.ts';
import { fixed, leaky, model, remaining, wholeSeconds, type Counter, type Dialect } from './upstreams.ts';

const near = { wayMs: [2, 2], serviceMs: [8, 8] } as const;

function timesOf(scene: Scene, originMs: number) {
  const { arrivals } = run(scene, 1, originMs);
  const first = arrivals[0]?.at ?? 0;
  const times = (isIn: boolean): readonly number[] =>
    arrivals.filter(({ admitted }) => admitted === isIn).map(({ at }) => at - first);
  return { served: times(true), throttled: times(false) };
}

const comingOne = (calls: number): readonly number[] => [...Array(calls).keys(), 1_500, 2_500];

/** Windows of 5 a second and 30 a minute at once. */
function twoWindows() {
  const [short, long] = [fixed(5, 1_000, null), fixed(30, 60_000, null)];
  const take = (now: number): void => [short, long].forEach((each) => each.take(now));
  const waitMs = (now: number): number => Math.max(short.waitMs(now), long.waitMs(now));
  const counter: Counter = { ...long, waitMs, take };
  const dialect: Dialect = {
    kind: 'generic',
    fields: (_, refusedMs, now) => [
      ['ratelimit-policy', '"w0";q=5;w=1, "w1";q=30;w=60'],
      ['ratelimit', `"w0";r=${remaining(short, now)}, "w1";r=${remaining(long, now)}`],
      ...wholeSeconds.fields(counter, refusedMs, now).slice(3),
    ],
  };
  return { counter: () => counter, dialect };
}

describe.each(origins)('an upstream with windows that are not configured, on $name', ({ ms }) => {
  test.each([
    [1, 10],
    [2, 10],
    [10, 20],
    [60, 30],
  ])('whose window is %d s of the clock, is paced by what its responses say is left', (seconds, limit) => {
    const counter = () => fixed(limit, seconds * 1_000, null);
    const calls = comingOne(4 * limit);
    const { served, throttled } = timesOf({ ...near, counter, dialect: wholeSeconds, calls, probe: 1 }, ms);
    expect(served).toHaveLength(calls.length);
    // The first calls are sent as they come; then at most one call per window is throttled because a window does not drain.
    const windowsNeeded = Math.ceil(served.length / limit);
    // Times are stated in whole seconds, so up to one second is lost where a window begins.
    expect(served.at(-1)).toBeLessThanOrEqual((windowsNeeded - 1) * (seconds * 1_000 + 1_000));
    expect(throttled.filter((at) => at > seconds * 1_000).length).toBeLessThanOrEqual(windowsNeeded - 1);
  });

  test('with several windows at once, is paced by all of them', () => {
    const { served, throttled } = timesOf({ ...near, ...twoWindows(), calls: comingOne(60), probe: 1 }, ms);
    expect(served).toHaveLength(62);
    for (const [windowMs, max] of [
      [1_000, 10],
      [60_000, 60],
    ] as const)
      for (const from of served)
        expect(served.filter((at) => at >= from && at < from + windowMs).length).toBeLessThanOrEqual(max);
    // Calls in transit before the first response may be throttled, and at most one for each full window of a second.
    expect(throttled.filter((at) => at > 1_000).length).toBeLessThanOrEqual(62 / 5);
    // 30 calls in each of the first two minutes, the last two at the beginning of the third.
    expect(served.at(-1)).toBeLessThanOrEqual(120_000 * 1.02);
  });
});

const closesAt = 58_000;
const opensAt = 70_000;

/** A bucket of 6,000 a minute that is full for everybody from one time to another: it says so, and that it takes a minute more to drain. */
function closing(): Counter {
  const open = leaky(6_000, 60_000);
  const closedMs = (now: number): number => (now >= closesAt && now < opensAt ? opensAt - now : 0);
  return {
    ...open,
    used: (now) => (closedMs(now) > 0 ? open.limit : open.used(now)),
    waitMs: (now) => closedMs(now) || open.waitMs(now),
    resetMs: (now) => (closedMs(now) > 0 ? closedMs(now) + 60_000 : open.resetMs(now)),
  };
}

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
  ])('%s, sending goes on at the stated time and at the rate of the meter', (_what, crowds) => {
    const calls = crowds.flatMap(([at, count]) => Array<number>(count).fill(at));
    const stated = [{ meter: 'requests', limit: 6_000, windowMs: 60_000 }] as const;
    const scene = { counter: closing, dialect: model, stated, calls };
    const { arrivals } = run({ ...scene, wayMs: [0, 0], serviceMs: [20, 20] }, 1, ms);
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
