/** What becomes of a bucket's meters when configuration is loaded again with other limits. */
import { describe, expect, test } from '@jest/globals';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { origins, report, TimedMeter } from './metering.ts';
import { TestBucket } from './scheduling.ts';

const hourMs = 3_600_000;

type Meters = readonly MeterSetting[];
const meter = (
  ...[name, limit, seconds, counts]: [MeterSetting['meter'], number, number, MeterSetting['counts']?]
): MeterSetting => ({ meter: name, limit, windowMs: seconds * 1_000, ...(counts && { counts }) });
/** So many requests in so many seconds. */
const of = (limit: number, seconds: number, counts?: MeterSetting['counts']): Meters => [
  meter('requests', limit, seconds, counts),
];
const rolling = (limit: number, seconds: number): Meters => of(limit, seconds, 'rolling');
const fixed = (limit: number, seconds: number): Meters => of(limit, seconds, 'fixed');

/** A bucket whose meters are described like this from time to time; its clock begins not where a minute of the clock does. */
class Reloaded extends TestBucket {
  #calls = 0;

  constructor(instant: Instant) {
    super((ms) => instant(20_000 + ms), { maxWaitMs: 0 });
  }

  /** A call comes; returns how long it would wait, 0 = it left. */
  ask(ms: number, meters: Meters, costs: Record<string, number> = { requests: 1 }): number {
    const asked = this.at(ms).admit(`t${(this.#calls += 1)}`, { meters, costs });
    return asked.kind === 'refused' ? asked.retryInMs : 0;
  }

  /** So many calls leave at once. */
  send(ms: number, calls: number, meters: Meters): this {
    for (let sent = 0; sent < calls; sent += 1) expect(this.ask(ms + sent / 64, meters)).toBe(0);
    return this;
  }

  /** A call that comes then waits for as long as this. */
  waits(ms: number, meters: Meters, [minMs, maxMs]: readonly [number, number]): this {
    const waitMs = this.ask(ms, meters);
    expect(waitMs).toBeGreaterThanOrEqual(minMs);
    expect(waitMs).toBeLessThan(maxMs);
    return this;
  }
}

atOrigins('a bucket that is described anew', (instant) => {
  const day = (limit: number): Meters => [meter('requests_day', limit, 86_400)];

  test.each([
    ['goes on at once when the quota of its day is no longer stated', [day(2), day(2), day(2), []], '++-+'],
    ['goes on when it is raised, and counts what was used', [day(2), day(2), day(3), day(3)], '+++-'],
    ['stops at once when a limit is lowered', [day(5), day(5), day(2), day(5)], '++-+'],
    ['stops at once when a limit is added', [[], [], day(1)], '++-'],
  ])('%s', (_what, described, expected) => {
    const bucket = new Reloaded(instant);
    const costs = { requests: 1, requests_day: 1 };
    const left = described.map((meters, at) => (bucket.ask(at, meters, costs) === 0 ? '+' : '-'));
    expect(left.join('')).toBe(expected);
  });

  /** What is left of a minute of the clock, and the lateness that a window allows for. */
  const clockMs = 60_000 - (instant(20_000) % 60_000) + 1_100;

  // Three calls leave at once under the first description; the next one comes so much later, and waits that long.
  test.each<
    [what: string, before: Meters, after: Meters, laterMs: number, waitMs: readonly [number, number]]
  >([
    ['rolling, and gets shorter', rolling(3, 60), rolling(3, 1), 100, [0, 1_100]],
    ['fixed, and gets shorter', fixed(3, 60), fixed(3, 1), 100, [0, 1_100]],
    ['rolling, and gets shorter after a shorter one has ended', rolling(3, 60), rolling(3, 1), 2_000, [0, 1]],
    ['fixed, and gets shorter after a shorter one has ended', fixed(3, 60), fixed(3, 1), 2_000, [0, 1_100]],
    ['rolling, and gets longer', rolling(3, 1), rolling(3, 60), 900, [59_100, 60_200]],
    ['fixed from now on', rolling(3, 60), fixed(3, 60), 5_000, [0, clockMs - 5_000]],
    ['fixed from now on, and drained before', of(3, 60), fixed(3, 60), 5_000, [0, clockMs - 5_000]],
    ['rolling from now on, and has drained before', of(3, 6), rolling(3, 6), 6_200, [0, 0.001]],
    [
      'rolling from now on, and counts that of the clock',
      fixed(3, 60),
      rolling(3, 60),
      5_000,
      [55_000, 61_100],
    ],
    ['rolling from now on, and gets longer', fixed(3, 1), rolling(3, 60), 50_000, [10_000, 12_200]],
  ])('with a window that is %s', (_what, before, after, laterMs, waitMs) => {
    new Reloaded(instant).send(0, 3, before).waits(laterMs, after, waitMs);
  });

  test('with a window more counts the calls that wait already', () => {
    const before = rolling(1, 1);
    const bucket = new Reloaded(instant);
    const patient = { setting: { meters: before, learn: true, probe: 0 }, maxWaitMs: 1e6 };
    expect(bucket.enter(['a', 'b', 'c', 'd'], patient)).toEqual(['a']);
    bucket.waits(1_004, [...before, meter('requests_hour', 1, 60, 'rolling')], [180_000, 250_000]);
  });
});

type Step = readonly [ms: number, described: Meters, minMs: number, maxMs: number];
atOrigins('of described windows that change their number', (instant) => {
  const second = rolling(3, 1);
  const minute = rolling(100, 60);
  const secondAndMinute = [meter('requests_burst', 3, 1, 'rolling'), ...minute];
  const minuteAndHour = [...minute, meter('requests_hour', 5, 3_600, 'rolling')];
  const burst = meter('requests_burst', 50, 1, 'rolling');
  const three = [burst, ...rolling(60, 2), meter('requests_hour', 5, 60, 'rolling')];

  // So many calls leave at once under the first description; then one comes under each of the others, and waits for so long.
  test.each<[what: string, calls: number, before: Meters, ...steps: Step[]]>([
    ['of a second counts on when one of a minute is added', 3, second, [100, secondAndMinute, 890, 950]],
    [
      'of a second counts on when the one of a minute is taken away, and comes back',
      3,
      secondAndMinute,
      [100, second, 890, 950],
      [200, secondAndMinute, 790, 850],
    ],
    ['of a second has counted what that of a minute has', 3, minute, [100, secondAndMinute, 890, 1_000]],
    ['of a second has counted no more than a second', 3, minute, [3_000, secondAndMinute, 0, 0.001]],
    [
      'of an hour counts on when it is the only one, and when it is not any more',
      5,
      minuteAndHour,
      [1_800_000, rolling(5, 3_600), 1_790_000, hourMs],
      [1_900_000, minuteAndHour, 1_690_000, hourMs],
    ],
    [
      'of a minute counts on between a shorter and a longer one',
      5,
      rolling(5, 60),
      [10_000, three, 49_900, 60_000],
      [20_000, rolling(5, 60), 39_900, 50_000],
    ],
    [
      'that was lowered drains from its limit, not from what it had counted before',
      6,
      rolling(6, 60),
      [1_000, rolling(2, 60), 50_000, 125_000],
      [2_000, of(2, 60), 0, 31_000],
    ],
    [
      'that drains goes on with its level',
      3,
      of(3, 3),
      [100, [meter('requests_burst', 3, 3), ...of(100, 60)], 850, 1_100],
    ],
  ])('one %s', (_what, calls, before, ...steps) => {
    const bucket = new Reloaded(instant).send(0, calls, before);
    for (const [ms, described, minMs, maxMs] of steps) bucket.waits(ms, described, [minMs, maxMs]);
  });
});

const wide = { limit: 40, windowMs: 20_000 };
const narrow = { limit: 10, windowMs: 20_000 };

describe.each(origins)('a meter whose stated limit changes, on a clock that begins at %d', (from) => {
  test('forgets nothing while replicas disagree on what is stated', () => {
    const timed = TimedMeter.stated(wide, from);
    timed.fill(40, 0);
    for (const ms of [20, 40, 60]) {
      timed.state(narrow, ms);
      timed.state(wide, ms + 10);
    }
    expect(timed.roomIn(1, 100)).toBeGreaterThan(0);
  });

  test('has no more room than before when the first response raises a limit that was lowered', () => {
    const timed = TimedMeter.stated(wide, from);
    const [last] = timed.fill(40, 0).slice(-1);
    if (last === undefined) throw new Error('nothing was sent');
    timed.state(narrow, 20);
    // In round figures, as some upstreams state what remains.
    const rounded = { ...report(40, 30, 20_000), level: { lowest: 30, highest: 40 } };
    timed.respond(rounded, last, { sentMs: 1, headMs: 50 });
    expect(timed.roomIn(2, 60)).toBeGreaterThan(0);
    expect(timed.roomIn(2, 1_600)).toBe(0);
  });

  test('below what is reported goes on at the stated pace while the upstream has room, and waits while it is full', () => {
    const reporting = (used: number): TimedMeter => {
      const timed = TimedMeter.stated(narrow, from, false);
      timed.respond(report(40, used, 20_000), timed.take(1, 0), { sentMs: 0, headMs: 10, learn: false });
      return timed;
    };
    // Others have used 25 of the 30 units that are not stated.
    expect(reporting(26).roomIn(9, 2_000)).toBe(0);
    const waitMs = reporting(40).roomIn(1, 1_000);
    expect(waitMs > 0 && waitMs < 3_000).toBe(true);
  });
});
