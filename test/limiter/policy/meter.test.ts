/** One meter: its room, what comes back into it, what its limit is. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  minJitterMs,
  maxJitterMs,
  maxLatenessMs,
  restMs,
  drain,
  learnedWindowMs,
  type MeterMark,
} from '../../../src/limiter/policy/meter.policy.ts';
import { origins, report, TimedMeter } from './metering.ts';

describe.each(origins)('a meter on a clock that begins at %d', (from) => {
  const stated = (limit: number, windowMs: number) => TimedMeter.stated({ limit, windowMs }, from);

  test.each([
    [10, 1_000, 0, 1, 0],
    [10, 1_000, 10, 1, 100],
    [10, 1_000, 9.5, 1, 50],
    [1, 60_000, 1, 1, 60_000],
    [100, 60_000, 50, 120, 30_000],
  ])('of %d in %d ms at level %d has room for %d in %d ms', (limit, windowMs, level, cost, expected) => {
    const timed = stated(limit, windowMs);
    timed.meter.level = level;
    expect(timed.roomIn(cost, 0)).toBeCloseTo(expected, 3);
  });

  test('delays no call when its limit is unknown', () => {
    expect(TimedMeter.unknown('tokens', from).roomIn(1e9, 0)).toBe(0);
  });

  test('takes no more than its limit, whatever cost a call states', () => {
    const timed = stated(30_000, 60_000);
    expect(timed.take(1e12, 0).cost).toBe(30_000);
    expect(timed.roomIn(10, 0)).toBeLessThan(62_000);
  });

  test('does not drain while the clock steps back', () => {
    const timed = stated(10, 1_000);
    timed.take(5, 100);
    const { level } = timed.meter;
    drain(timed.meter, from + 50);
    expect(timed.meter.level).toBe(level);
  });

  test.each([
    [1, 1_000, maxJitterMs],
    [10, 10_000, 10_000 / 60],
    [600, 60_000, maxLatenessMs],
  ])('of %d in %d ms that was empty is filled at once and drains %d ms later', (limit, windowMs, restsMs) => {
    for (const left of [0, 1e-16, 0.001]) {
      const timed = stated(limit, windowMs);
      timed.meter.level = left;
      for (let at = 0; at < limit; at += 1) {
        if (left === 0) expect(timed.roomIn(1, 0)).toBe(0);
        timed.take(1, 0);
      }
      expect(timed.roomIn(1, 0)).toBeCloseTo(restsMs + windowMs / limit, 2);
    }
  });

  test('goes on draining when a response shows that the first call has arrived', () => {
    const timed = stated(600, 60_000);
    timed.respond(report(600, 1), timed.take(1, 0), { sentMs: 0, headMs: 40 });
    expect(restMs(timed.meter, from + 40)).toBeLessThanOrEqual(minJitterMs);
  });

  test('never has less, after a call was given back, than if the call had not come', () => {
    const gaps = fc.array(fc.integer({ min: 0, max: 9_000 }), { minLength: 2, maxLength: 12 });
    fc.assert(
      fc.property(gaps, fc.nat(11), fc.integer({ min: 0, max: 30_000 }), (gapsMs, unsent, heldMs) => {
        const [timed, without] = [stated(6, 24_000), stated(6, 24_000)];
        let [at, mark, grantedMs]: [number, MeterMark | null, number] = [0, null, 0];
        for (const [index, gapMs] of gapsMs.entries()) {
          at += gapMs;
          if (timed.roomIn(1, at) > 0) continue;
          const taken = timed.take(1, at);
          if (mark === null && index >= unsent % gapsMs.length) [mark, grantedMs] = [taken, at];
          else without.take(1, at);
        }
        at += heldMs;
        if (mark !== null) timed.giveBack(mark, grantedMs, at);
        for (const { meter } of [timed, without]) drain(meter, from + at);
        // A meter that leaves empty rests: a sixtieth of its window.
        expect(timed.meter.level).toBeGreaterThanOrEqual(without.meter.level - 6 / 60 - 1e-6);
      }),
    );
  });

  test('takes no limit from a response whose call was sent before that of an earlier response', () => {
    const timed = stated(10, 1_000);
    const [first, second] = [timed.take(1, 1), timed.take(1, 50)];
    timed.respond(report(40, 2), second, { sentMs: 50, headMs: 60 });
    timed.respond(report(10, 1), first, { sentMs: 1, headMs: 70 });
    expect(timed.meter.limit).toBe(40);
  });
});

describe.each(origins)('a meter that learns its limit, on a clock that begins at %d', (from) => {
  test('is at most full when a response states the limit and no level', () => {
    const timed = TimedMeter.unknown('tokens', from);
    const stated = { meter: 'tokens', limit: 30_000, windowMs: null, level: null } as const;
    timed.respond(stated, timed.take(1e12, 0), { sentMs: 0, headMs: 40 });
    expect(timed.roomIn(10, 40)).toBeLessThanOrEqual(1_100);
  });

  test('is at most full when the operator states the limit', () => {
    const timed = TimedMeter.unknown('tokens', from);
    timed.take(1e12, 0);
    timed.state({ limit: 30_000, windowMs: 60_000 }, 40);
    expect(timed.roomIn(10, 40)).toBeLessThanOrEqual(1_100);
  });

  test('does not delay calls of today for calls sent on the days before', () => {
    const timed = TimedMeter.unknown('requests_day', from);
    for (let hour = 0; hour < 240; hour += 1) timed.take(50, hour * 3_600_000);
    timed.state({ limit: 10_000, windowMs: 86_400_000 }, 240 * 3_600_000);
    expect(timed.meter.level).toBeGreaterThan(600);
    expect(timed.meter.level).toBeLessThan(2_400);
  });
});

describe.each(origins)('the limit of a meter, on a clock that begins at %d', (from) => {
  const minute = (limit: number) => ({ limit, windowMs: 60_000 });
  /** A response has reported 100. */
  const learned = (learn: boolean, stated: number | null): TimedMeter => {
    const timed = TimedMeter.unknown('requests', from);
    timed.state(stated === null ? null : minute(stated), 0, learn);
    timed.respond(report(100, 1), timed.take(1, 1), { sentMs: 1, headMs: 2, learn });
    return timed;
  };

  test.each<[string, number | null, boolean, number]>([
    ['is the reported one when nothing is stated', null, true, 100],
    ['is the reported one when nothing is stated and nothing may be raised', null, false, 100],
    ['is the reported one above a stated one', 50, true, 100],
    ['is the reported one below a stated one', 200, true, 100],
    ['is the stated one below the reported one, pinned', 50, false, 50],
    ['is the reported one below the stated one, pinned', 200, false, 100],
  ])('%s', (_what, stated, learn, expected) => {
    expect(learned(learn, stated).meter.limit).toBe(expected);
  });

  test.each([
    ['is raised', minute(70), false, 70],
    ['is raised above what is reported', minute(200), false, 100],
    ['is lowered', minute(20), false, 20],
    ['is removed', null, false, 100],
    ['is pinned no more', minute(50), true, 100],
  ])('pinned to 50 and reported as 100 follows where it %s', (_what, quota, learn, expected) => {
    const timed = learned(false, 50);
    timed.state(quota, 10, learn);
    expect(timed.meter.limit).toBe(expected);
    timed.state(minute(50), 20, false);
    expect(timed.meter.limit).toBe(50);
  });

  test.each([
    ['100 in a minute, 5,000 in an hour', { limit: 100, windowMs: 60_000 }, [5_000, 3_600_000]],
    ['600 in a minute, 5 in a second', { limit: 600, windowMs: 60_000 }, [5, 1_000]],
    ['3 in a second, 600 in a minute', { limit: 3, windowMs: 1_000 }, [600, 60_000]],
  ] as const)('pinned to %s allows no more at once and no faster than either', (_what, quota, reported) => {
    const timed = TimedMeter.stated(quota, from, false);
    const [limit, windowMs] = reported;
    timed.respond(report(limit, 1, windowMs), timed.take(1, 1), { sentMs: 1, headMs: 2, learn: false });
    expect(timed.meter.limit).toBe(Math.min(limit, quota.limit));
    const rate = Math.min(limit / windowMs, quota.limit / quota.windowMs);
    expect((timed.meter.limit ?? 0) / timed.meter.windowMs).toBeCloseTo(rate, 12);
  });
});

describe('a window of unstated length', () => {
  /** From what successive responses say is left of it. */
  const learn = (left: readonly (number | null)[]): number | null =>
    left.reduce((known: number | null, leftMs) => learnedWindowMs(known, leftMs), null);

  test.each([
    ['as a second', [1_000, 1_000, 1_000], 1_000],
    ['as ten seconds, from the middle of a window on', [4_000, 2_000, 10_000, 9_000], 10_000],
    ['as a minute', [13_000, 60_000, 59_000], 60_000],
    ['as a minute that is stated as 61 s', [61_000], 60_000],
    ['as an hour', [12_000, 3_600_000, 3_599_000], 3_600_000],
    ['as unknown when no response says what is left', [null, null], null],
  ])('is learned %s', (_what, left, expected) => {
    expect(learn(left)).toBe(expected);
  });

  test('is learned, from 1 s on, as no shorter than it is and at most twice as long', () => {
    const shares = fc.array(fc.double({ min: 0.001, max: 1, noNaN: true }), { maxLength: 20 });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 3_600 }), shares, (seconds, before) => {
        const learned = learn([...before, 1].map((share) => Math.ceil(share * seconds) * 1_000)) ?? 0;
        expect(learned).toBeGreaterThanOrEqual(seconds > 10 ? seconds * 1_000 - 1_000 : seconds * 1_000);
        expect(learned).toBeLessThanOrEqual(seconds * 2_000);
      }),
    );
  });
});
