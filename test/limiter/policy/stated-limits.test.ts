/** What becomes of a bucket's meters when configuration is loaded again with other limits. */
import { describe, expect, test } from '@jest/globals';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { admit, createBucket } from '../../../src/limiter/policy/scheduler.policy.ts';
import { origins, report, TimedMeter } from './metering.ts';
import { admission } from '../../support/admission.ts';
import { replica } from './scheduling.ts';

const dayMs = 86_400_000;

describe.each(origins)('a bucket on a clock that begins at %d', (from) => {
  /** Whether calls without any wait are granted, one after the other, each with the meters stated at its time. */
  const isGranted = (
    settings: readonly (readonly MeterSetting[])[],
    costs = { requests: 1, requests_day: 1 },
  ) => {
    const bucket = createBucket(0, from);
    return settings.map((meters, at) => {
      const call = admission(`t${at}`, { costs, maxWaitMs: 0 });
      const setting = { ...call.setting, meters };
      return admit(bucket, { admission: { ...call, setting }, replica }, from + at).kind === 'granted';
    });
  };
  const day = (limit: number): MeterSetting => ({ meter: 'requests_day', limit, windowMs: dayMs });

  test('goes on at once when the quota of its day is no longer stated', () => {
    expect(isGranted([[day(2)], [day(2)], [day(2)], [], []])).toEqual([true, true, false, true, true]);
  });

  test('goes on at once when the quota of its day is raised, and still counts what was used', () => {
    const settings = [[day(2)], [day(2)], [day(2)], [day(3)], [day(3)]];
    expect(isGranted(settings)).toEqual([true, true, false, true, false]);
  });

  test('stops at once when a limit is added or lowered', () => {
    const lowered = [[day(5)], [day(5)], [day(2)], [day(5)]];
    expect(isGranted(lowered)).toEqual([true, true, false, true]);
    const added = [[], [], [day(1)]];
    expect(isGranted(added)).toEqual([true, true, false]);
  });
});

describe.each(origins)('a meter of which no answer tells, on a clock that begins at %d', (from) => {
  const wide = { limit: 40, windowMs: 20_000 };
  const narrow = { limit: 10, windowMs: 20_000 };
  const used = (): TimedMeter => {
    const meter = TimedMeter.stated(wide, from);
    for (let sent = 0; sent < wide.limit; sent += 1) meter.take(1, 0);
    return meter;
  };

  test('forgets nothing while replicas disagree on what is stated', () => {
    const meter = used();
    for (const atMs of [20, 40, 60]) {
      meter.state(narrow, atMs);
      meter.state(wide, atMs + 10);
    }
    expect(meter.roomIn(1, 100)).toBeGreaterThan(0);
  });

  test('goes on at the pace of a lowered limit at once, and has the room of a raised one', () => {
    const meter = used();
    meter.state(narrow, 1_000);
    expect(meter.roomIn(1, 4_000)).toBe(0);
    meter.state(wide, 11_000);
    expect(meter.roomIn(19, 11_000)).toBe(0);
    expect(meter.roomIn(23, 11_000)).toBeGreaterThan(0);
  });
});

describe.each(origins)(
  'a meter whose stated limit is below what its answers tell, on a clock that begins at %d',
  (from) => {
    const reported = { limit: 40, windowMs: 20_000 };
    const pinned = { limit: 10, windowMs: 20_000 };
    /** One call was sent at the beginning, and its answer stated so many of the 40 units as used. */
    const afterAnswer = (used: number): TimedMeter => {
      const meter = TimedMeter.stated(pinned, from, false);
      meter.answer(report(reported.limit, used, reported.windowMs), meter.take(1, 0), {
        sentMs: 0,
        headMs: 10,
        learn: false,
      });
      return meter;
    };

    test('goes on at the stated pace while the upstream has room', () => {
      // Others have used 25 of the 30 units that are not stated.
      expect(afterAnswer(26).roomIn(9, 2_000)).toBe(0);
    });

    test('waits for the upstream as long as the upstream is full', () => {
      const waitMs = afterAnswer(40).roomIn(1, 1_000);
      expect(waitMs).toBeGreaterThan(0);
      expect(waitMs).toBeLessThan(3_000);
    });

    test('counts what it has sent at the stated pace, however fast the upstream forgets it', () => {
      const meter = TimedMeter.stated(pinned, from, false);
      const marks = Array.from({ length: 10 }, () => meter.take(1, 0));
      // Of ten units the upstream has forgotten eight after four seconds, and two of them count no more here.
      for (const mark of marks)
        meter.answer(report(reported.limit, 2, reported.windowMs), mark, {
          sentMs: 4_000,
          headMs: 4_010,
          learn: false,
        });
      expect(meter.roomIn(4, 4_020)).toBeGreaterThan(2_000);
    });

    test('has no more room than the upstream when replicas disagree for a while on what is stated', () => {
      const meter = TimedMeter.stated(reported, from, false);
      const marks = Array.from({ length: 39 }, () => meter.take(1, 0));
      for (const [used, mark] of marks.entries())
        meter.answer(report(reported.limit, used + 1, reported.windowMs), mark, {
          sentMs: 0,
          headMs: 10,
          learn: false,
        });
      for (const atMs of [20, 40, 60]) {
        meter.state(pinned, atMs, false);
        meter.state(reported, atMs + 10, false);
      }
      expect(meter.roomIn(3, 100)).toBeGreaterThan(0);
    });

    test('has the room of the upstream as soon as the stated limit is raised', () => {
      const meter = afterAnswer(1);
      for (let sent = 1; sent < pinned.limit; sent += 1) meter.take(1, 20);
      expect(meter.roomIn(1, 30)).toBeGreaterThan(0);
      meter.state(reported, 40, false);
      expect(meter.roomIn(25, 50)).toBe(0);
    });
  },
);
