/** The log of a described window against an upstream that counts it exactly (`simulators/dialect/quota.ts`). */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  applySetting,
  createMeter,
  roomInMs,
  take,
  giveUnitsBack,
  type Meter,
  type CountedWindow,
  logReported,
  logSent,
  loggedUnits,
  maxMarginMs,
  minMarginMs,
  windowsOfMargin,
  windowWaitMs,
} from '../../../src/limiter/policy/meter.policy.ts';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { Quota } from '../../../simulators/dialect/quota.ts';

const startAt = 1_800_000_000_123;

const described = (meter: Meter, stated: Omit<MeterSetting, 'meter'>): void =>
  applySetting(meter, { meter: 'requests', ...stated }, true, startAt);

function meterOf(stated: Omit<MeterSetting, 'meter'>): Meter {
  const meter = createMeter('requests', startAt);
  described(meter, stated);
  return meter;
}

/** Sends so many calls as early as all meters have room; returns when each left. */
function sendAll(meters: readonly Meter[], calls: number, gapMs: () => number): number[] {
  const left: number[] = [];
  let now = startAt;
  while (left.length < calls) {
    const roomMs = Math.max(...meters.map((meter) => roomInMs(meter, 1, 0, now)));
    now += roomMs;
    if (roomMs > 0) continue;
    for (const meter of meters) take(meter, 1, now);
    left.push(now);
    now += gapMs();
  }
  return left;
}

const upTo = (max: number) => fc.integer({ min: 1, max });
const stated = fc.record({
  limit: upTo(60),
  windowMs: fc.constantFrom(1_000, 2_000, 10_000, 60_000, 3_600_000),
  counts: fc.constantFrom<CountedWindow>('rolling', 'fixed'),
});

describe('a window that the operator describes', () => {
  test('never takes more than its limit, however the calls come and however late they arrive', () => {
    fc.assert(
      fc.property(stated, fc.infiniteStream(fc.double({ min: 0, max: 1, noNaN: true })), (window, draws) => {
        const draw = (): number => draws.next().value as number;
        const spreadMs = draw() * (window.windowMs / window.limit);
        const left = sendAll([meterOf(window)], window.limit * 3, () => draw() * spreadMs);
        const upstream = new Quota({
          windows: [{ requests: window.limit, seconds: window.windowMs / 1000, kind: window.counts }],
        });
        const arrivals = left.map((at) => at + draw() * (minMarginMs - 1)).toSorted((a, b) => a - b);
        for (const at of arrivals) expect(upstream.ask(at)).toEqual({ kind: 'admitted' });
      }),
      { numRuns: 60 },
    );
  });

  test('a burst of three limits takes two windows, and a twentieth more at most', () => {
    fc.assert(
      fc.property(stated, (window) => {
        const left = sendAll([meterOf(window)], window.limit * 3, () => 0.01);
        const tookMs = (left.at(-1) ?? 0) - startAt;
        expect(tookMs).toBeLessThanOrEqual(2 * window.windowMs * 1.05);
      }),
      { numRuns: 40 },
    );
  });

  test('a limit that is lowered waits for what was sent, not for as many windows as that would take under it', () => {
    fc.assert(
      fc.property(stated, upTo(60), upTo(200), (window, limit, ahead) => {
        const lowered = Math.min(limit, window.limit);
        const meter = meterOf(window);
        sendAll([meter], window.limit, () => 0);
        const endsAt = Math.max(...(meter.log?.slots ?? []).map(({ until }) => until));
        described(meter, { ...window, limit: lowered });
        // All that was sent leaves at once; then a whole limit goes in each window.
        const firstMs = windowWaitMs(meter, Math.min(ahead, lowered), startAt);
        expect(firstMs).toBeLessThanOrEqual(endsAt - startAt);
        const windows = Math.ceil(ahead / lowered) - 1;
        const waitMs = windowWaitMs(meter, ahead, startAt);
        expect(waitMs).toBeLessThanOrEqual(endsAt - startAt + windows * (window.windowMs + maxMarginMs));
        expect(waitMs).toBeGreaterThanOrEqual(firstMs);
      }),
      { numRuns: 100 },
    );
  });

  test('a level with a fraction, under a lowered limit, waits one window for each limit behind it and no further one', () => {
    const meter = createMeter('requests', startAt);
    described(meter, { limit: 2, windowMs: 4_000 });
    meter.level = 1.999372699022293;
    described(meter, { limit: 2, windowMs: 4_000, counts: 'rolling' });
    described(meter, { limit: 1, windowMs: 4_000, counts: 'rolling' });
    const endsAt = Math.max(...(meter.log?.slots ?? []).map(({ until }) => until));
    const windowsMs = 2 * (4_000 + 4_000 / windowsOfMargin);
    expect(windowWaitMs(meter, 3, startAt)).toBeCloseTo(endsAt - startAt + windowsMs, 6);
  });

  test('a call that was answered late counts for the next window of the clock, and the others of its window do not', () => {
    const meter = meterOf({ limit: 10, windowMs: 60_000, counts: 'fixed' });
    const beginsAt = Math.ceil(startAt / 60_000) * 60_000;
    for (let n = 0; n < 10; n += 1) take(meter, 1, beginsAt + 10_000 + n);
    const sentAt = beginsAt + 58_500;
    const times = { cost: 1, isFirst: true, grantedAt: sentAt, sentAt, headAt: sentAt + 1_000 };
    logSent(meter, times);
    const now = beginsAt + 61_500;
    expect(meter.log === null ? null : loggedUnits(meter.log, now)).toBe(1);
    expect(roomInMs(meter, 1, 0, now)).toBe(0);
  });

  test('units that the upstream did not count make room again, and units that others took take room away', () => {
    const meter = meterOf({ limit: 2, windowMs: 1_000, counts: 'rolling' });
    const mark = take(meter, 1, startAt);
    logReported(meter, 2, startAt + 5);
    expect(roomInMs(meter, 1, 0, startAt + 10)).toBeGreaterThan(900);
    giveUnitsBack(meter, mark, startAt, startAt + 20);
    expect(meter.log === null ? null : loggedUnits(meter.log, startAt + 20)).toBe(1);
    expect(roomInMs(meter, 1, 0, startAt + 20)).toBe(0);
  });
});
