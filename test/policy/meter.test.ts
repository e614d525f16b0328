import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  applySetting,
  leastJitterMs,
  mostJitterMs,
  mostLatenessMs,
  restMs,
  createMeter,
  drain,
  giveUnitsBack,
  markAnswered,
  roomInMs,
  take,
  type Meter,
  type MeterMark,
} from '../../src/limiter/meter.policy.ts';
import { learnMeter, refused } from '../../src/limiter/meter-learning.policy.ts';
import { atOrigins, type Instant } from './at-origins.ts';

/** Milliseconds since 1970 in a double go in steps of a quarter of a microsecond; sums of a few of them stay below this. */
const clockStepMs = 0.001;

const stated = (instant: Instant, limit: number, windowMs: number): Meter => {
  const meter = createMeter('requests', instant(0));
  applySetting(meter, { meter: 'requests', limit, windowMs }, true, instant(0));
  return meter;
};

const report = (limit: number, used: number) =>
  ({ meter: 'requests', limit, windowMs: null, level: { lowest: used, highest: used } }) as const;

atOrigins('a meter', (instant) => {
  test.each([
    [10, 1_000, 0, 1, 0],
    [10, 1_000, 10, 1, 100],
    [10, 1_000, 9.5, 1, 50],
    [1, 60_000, 1, 1, 60_000],
    [100, 60_000, 50, 120, 30_000],
  ])('of %d in %d ms at level %d has room for %d in %d ms', (limit, windowMs, level, cost, expected) => {
    const meter = stated(instant, limit, windowMs);
    meter.level = level;
    expect(roomInMs(meter, cost, instant(0))).toBeCloseTo(expected, 6);
  });

  test('without a limit holds nobody back', () => {
    expect(roomInMs(createMeter('tokens', instant(0)), 1e9, instant(0))).toBe(0);
  });

  test('takes no more than its limit, whatever a call says that it costs', () => {
    const meter = stated(instant, 30_000, 60_000);
    const mark = take(meter, 1e12, instant(0));
    expect(mark.cost).toBe(30_000);
    expect(roomInMs(meter, 10, instant(0))).toBeLessThan(62_000);
  });

  test('whose limit was not known when a call asked for everything is not shut for longer than a window', () => {
    const meter = createMeter('requests', instant(0));
    take(meter, 1e12, instant(0));
    const mark = take(meter, 10, instant(0));
    markAnswered(meter, mark);
    learnMeter(
      meter,
      { meter: 'requests', limit: 30_000, windowMs: 60_000, level: { lowest: 9, highest: 10 } },
      mark,
      { sentAt: instant(0), headAt: instant(20), quiet: true, calm: true },
      true,
      instant(20),
    );
    expect(roomInMs(meter, 10, instant(20))).toBeLessThan(62_000);
  });

  test('does not drain while the clock steps back', () => {
    const meter = stated(instant, 10, 1_000);
    take(meter, 5, instant(100));
    const { level } = meter;
    drain(meter, instant(50));
    expect(meter.level).toBe(level);
  });

  test.each([
    [1, 1_000, mostJitterMs],
    [10, 10_000, 10_000 / 60],
    [600, 60_000, mostLatenessMs],
  ])(
    'of %d in %d ms that leaves empty is filled at once and drains %d ms later',
    (limit, windowMs, restsMs) => {
      for (const left of [0, 1e-16, 0.001]) {
        const meter = stated(instant, limit, windowMs);
        meter.level = left;
        for (let at = 0; at < limit; at += 1) {
          if (left === 0) expect(roomInMs(meter, 1, instant(0))).toBe(0);
          take(meter, 1, instant(0));
        }
        expect(roomInMs(meter, 1, instant(0))).toBeCloseTo(restsMs + windowMs / limit, 3);
      }
    },
  );

  test('that leaves nearly empty rests only for what is not left', () => {
    const meter = stated(instant, 600, 60_000);
    meter.level = 4;
    take(meter, 600, instant(0));
    expect(restMs(meter, instant(0))).toBeCloseTo(mostLatenessMs - 400, 6);
  });

  test('goes on draining when an answer tells that the first call has arrived', () => {
    const meter = stated(instant, 600, 60_000);
    const mark = take(meter, 1, instant(0));
    markAnswered(meter, mark);
    learnMeter(
      meter,
      report(600, 1),
      mark,
      { sentAt: instant(0), headAt: instant(40), quiet: true, calm: true },
      true,
      instant(40),
    );
    expect(restMs(meter, instant(40))).toBeLessThanOrEqual(leastJitterMs);
  });

  test('gets back only what has not drained of a reservation', () => {
    const meter = stated(instant, 2, 20_000);
    const mark = take(meter, 1, instant(0));
    take(meter, 1, instant(5_000));
    giveUnitsBack(meter, mark, instant(0), instant(5_000));
    expect(meter.level).toBeGreaterThanOrEqual(1);
  });

  test('gets back the whole while it rests, and is as if nothing had been', () => {
    const meter = stated(instant, 1, 60_000);
    giveUnitsBack(meter, take(meter, 1, instant(0)), instant(0), instant(400));
    expect(roomInMs(meter, 1, instant(400))).toBe(0);
  });

  test('a pinned limit falls with the report and never rises', () => {
    const meter = stated(instant, 10, 1_000);
    const seen = { sentAt: instant(1), headAt: instant(2), quiet: true, calm: true };
    learnMeter(meter, report(20, 1), take(meter, 1, instant(1)), seen, false, instant(2));
    expect(meter.limit).toBe(10);
    learnMeter(
      meter,
      report(4, 1),
      take(meter, 1, instant(3)),
      { ...seen, sentAt: instant(3) },
      false,
      instant(4),
    );
    expect(meter.limit).toBe(4);
  });

  test('an answer that was sent earlier does not set the limit again', () => {
    const meter = stated(instant, 10, 1_000);
    const [first, second] = [take(meter, 1, instant(1)), take(meter, 1, instant(50))];
    learnMeter(
      meter,
      report(40, 2),
      second,
      { sentAt: instant(50), headAt: instant(60), quiet: true, calm: true },
      true,
      instant(60),
    );
    learnMeter(
      meter,
      report(10, 1),
      first,
      { sentAt: instant(1), headAt: instant(70), quiet: true, calm: true },
      true,
      instant(70),
    );
    expect(meter.limit).toBe(40);
  });

  test('whatever it has learned, it opens within the time it takes to drain', () => {
    const step = fc.record({
      kind: fc.constantFrom('take', 'answer', 'refuse', 'pass'),
      ms: fc.double({ min: 0, max: 20_000, noNaN: true }),
      share: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(
        fc.constantFrom(1, 2, 5, 40, 1_000),
        fc.array(step, { maxLength: 60 }),
        fc.double({ min: 0.01, max: 1.5, noNaN: true }),
        (limit, steps, costShare) => {
          const meter = stated(instant, limit, 60_000);
          const out: { mark: MeterMark; at: number }[] = [];
          let now = instant(0);
          for (const { kind, ms, share } of steps) {
            now += ms / 10;
            if (kind === 'take') out.push({ mark: take(meter, 1, now), at: now });
            const last = out.at(-1);
            if (kind === 'refuse') refused(meter, 1, ms, share > 0.5, now);
            if (kind !== 'answer' || last === undefined) continue;
            out.pop();
            markAnswered(meter, last.mark);
            learnMeter(
              meter,
              report(limit, limit * share),
              last.mark,
              { sentAt: last.at, headAt: now, quiet: share > 0.3, calm: share > 0.6 },
              true,
              now,
            );
          }
          const cost = Math.max(1, limit * costShare);
          const whenEmpty = restMs(meter, now) + (meter.level / limit) * 60_000;
          expect(roomInMs(meter, cost, now)).toBeLessThanOrEqual(whenEmpty + clockStepMs);
          expect(roomInMs(meter, cost, now + whenEmpty + clockStepMs)).toBeLessThanOrEqual(clockStepMs);
        },
      ),
      { numRuns: 500 },
    );
  });
});

/** An upstream that does what it states and whom nobody else uses. */
atOrigins('a meter that had no limit yet', (instant) => {
  const asked = (): { meter: Meter; mark: MeterMark } => {
    const meter = createMeter('tokens', instant(0));
    return { meter, mark: take(meter, 1e12, instant(0)) };
  };

  test('is full at most when an answer tells the limit and no level', () => {
    const { meter, mark } = asked();
    const told = { meter: 'tokens', limit: 30_000, windowMs: null, level: null } as const;
    learnMeter(
      meter,
      told,
      mark,
      { sentAt: instant(0), headAt: instant(40), quiet: true, calm: true },
      true,
      instant(40),
    );
    expect(roomInMs(meter, 10, instant(40))).toBeLessThanOrEqual(1_100);
  });

  test('is full at most when the operator states one', () => {
    const { meter } = asked();
    applySetting(meter, { meter: 'tokens', limit: 30_000, windowMs: 60_000 }, true, instant(40));
    expect(roomInMs(meter, 10, instant(40))).toBeLessThanOrEqual(1_100);
  });
});

atOrigins('the model of a meter', (instant) => {
  test('is never below the truth of an upstream of its own, in any order of answers', () => {
    const call = fc.record({
      gapMs: fc.constantFrom(0, 0, 1, 7, 30, 400),
      wayMs: fc.double({ min: 0, max: 24, noNaN: true }),
      backMs: fc.constantFrom(0, 5, 60, 900),
    });
    fc.assert(
      fc.property(
        fc.constantFrom(2, 5, 20),
        fc.array(call, { minLength: 1, maxLength: 40 }),
        (limit, calls) => {
          const meter = stated(instant, limit, 10_000);
          const rate = limit / 10_000;
          const arrivals: { at: number; mark: MeterMark; sentAt: number; backAt: number; quiet: boolean }[] =
            [];
          let now = instant(0);
          let last = -Infinity;
          for (const { gapMs, wayMs, backMs } of calls) {
            now += gapMs;
            if (roomInMs(meter, 1, now) > 0) continue;
            const mark = take(meter, 1, now);
            const at = now + wayMs;
            arrivals.push({ at, mark, sentAt: now, backAt: at + backMs, quiet: now - last >= 20 });
            last = now;
          }
          const inOrder = arrivals.toSorted((one, other) => one.at - other.at);
          let used = 0;
          let then = instant(0);
          const told = inOrder.map((arrival) => {
            used = Math.max(0, used - (arrival.at - then) * rate) + 1;
            then = arrival.at;
            expect(used).toBeLessThanOrEqual(limit + rate * clockStepMs);
            return { ...arrival, used };
          });
          let toldAt = now;
          const end = Math.max(now, ...told.map(({ backAt }) => backAt));
          for (const { mark, sentAt, backAt, quiet, used: level } of told.toSorted(
            (one, other) => one.backAt - other.backAt,
          )) {
            if (backAt < now) continue;
            markAnswered(meter, mark);
            learnMeter(
              meter,
              report(limit, level),
              mark,
              { sentAt, headAt: backAt, quiet, calm: quiet },
              true,
              (toldAt = Math.max(toldAt, backAt)),
            );
          }
          drain(meter, end);
          expect(meter.level).toBeGreaterThanOrEqual(used - (end - then + clockStepMs) * rate);
        },
      ),
      { numRuns: 500 },
    );
  });
});
