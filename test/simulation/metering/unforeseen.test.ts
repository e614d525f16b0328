/**
 * What no configuration says, on virtual time: windows of the upstream that are learned from its responses, and an upstream that
 * closes for everybody amid a steady load. Calls leave at the upstream's rate, and few are throttled.
 */
import { describe, expect, test } from '@jest/globals';
import { origins } from '../../support/origins.ts';
import { run, type Scene } from './paced-run.ts';
import { Fixed, Leaky, model, remaining, wholeSeconds, type Counter, type Dialect } from './upstreams.ts';

const near = { wayMs: [2, 2], serviceMs: [8, 8] } as const;

/** When calls were let in and refused, milliseconds since the first. */
function timesOf(scene: Scene, originMs: number) {
  const { arrivals } = run(scene, 1, originMs);
  const first = arrivals[0]?.at ?? 0;
  const times = (isIn: boolean): readonly number[] =>
    arrivals.filter(({ admitted }) => admitted === isIn).map(({ at }) => at - first);
  return { served: times(true), throttled: times(false) };
}

/** So many calls, one each millisecond, and two that come while others wait. */
const comingOne = (calls: number): readonly number[] => [...Array(calls).keys(), 1_500, 2_500];

/** Windows of 5 a second and 30 a minute at once. */
class TwoWindows implements Counter {
  readonly limit = 30;
  readonly short = new Fixed(5, 1_000, null);
  readonly long = new Fixed(30, 60_000, null);
  used = (now: number): number => this.long.used(now);
  resetMs = (now: number): number => this.long.resetMs(now);
  waitMs = (now: number): number => Math.max(this.short.waitMs(now), this.long.waitMs(now));
  take(now: number): void {
    this.short.take(now);
    this.long.take(now);
  }
}

const listing = ({ short, long }: TwoWindows): Dialect => ({
  kind: 'generic',
  fields: (counter, waitMs, now) => [
    ['ratelimit-policy', '"w0";q=5;w=1, "w1";q=30;w=60'],
    ['ratelimit', `"w0";r=${remaining(short, now)}, "w1";r=${remaining(long, now)}`],
    ...wholeSeconds.fields(counter, waitMs, now).slice(3),
  ],
});

describe.each(origins)('an upstream with windows that are not configured, on $name', ({ ms }) => {
  test.each([
    [1, 10],
    [2, 10],
    [10, 20],
    [60, 30],
  ])('whose window is %d s of the clock, is paced by what its responses say is left', (seconds, limit) => {
    const counter = () => new Fixed(limit, seconds * 1_000, null);
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
    const counter = new TwoWindows();
    const scene = { ...near, counter: () => counter, dialect: listing(counter), calls: comingOne(60) };
    const { served, throttled } = timesOf({ ...scene, probe: 1 }, ms);
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
class Closing extends Leaky {
  constructor() {
    super(6_000, 60_000);
  }
  #closedMs = (now: number): number => (now >= closesAt && now < opensAt ? opensAt - now : 0);
  override used = (now: number): number => (this.#closedMs(now) > 0 ? this.limit : super.used(now));
  override waitMs = (now: number): number => this.#closedMs(now) || super.waitMs(now);
  override resetMs(now: number): number {
    const closedMs = this.#closedMs(now);
    return closedMs > 0 ? closedMs + 60_000 : super.resetMs(now);
  }
}

/** A number of calls that come at one time. Milliseconds. */
type Crowd = readonly [at: number, calls: number];

/** A call every half second while the upstream is open. */
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
    const scene = { counter: () => new Closing(), dialect: model, stated, calls };
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
