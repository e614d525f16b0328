/** The sliding log of a ceiling, what it says of the slots to come, and its days. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { ceilingKey } from '../../../src/ids.ts';
import {
  ceilingWindowMs,
  dayState,
  expire,
  giveSlotBack,
  holdsIn,
  minuteState,
  slotInMs,
  takeSlot,
} from '../../../src/limiter/policy/ceiling.policy.ts';
import { CeilingStore } from '../../../src/limiter/ceiling-store.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { shiftedClock } from '../../support/shifted-clock.ts';
import { atOrigins } from '../../support/at-origins.ts';

const dayMs = 86_400_000;
const upTo = (max: number) => fc.integer({ min: 1, max });
const gaps = fc.array(fc.constantFrom(0, 1, 500, 7_000, 20_000, 60_000), { minLength: 1, maxLength: 80 });

atOrigins('the sliding log of a ceiling', (instant) => {
  test('never holds more sends in a window than the limit, and refuses only when it is full', () => {
    fc.assert(
      fc.property(upTo(6), gaps, (limit, steps) => {
        const log: number[] = [];
        const sent: number[] = [];
        let now = instant(0);
        for (const gap of steps) {
          now += gap;
          const inWindow = sent.filter((at) => at + ceilingWindowMs > now).length;
          const reply = takeSlot(log, { limit }, now);
          expect(reply.kind).toBe(inWindow < limit ? 'taken' : 'refused');
          if (reply.kind === 'taken') {
            sent.push(now);
            // What has left the window is dropped late, and not much of it is kept.
            expect(log.length).toBeLessThanOrEqual(2 * limit);
          } else {
            const before = [...log];
            expect(takeSlot(log, { limit }, now + reply.waitMs - 0.001).kind).toBe('refused');
            expect(log).toEqual(before);
            expect(takeSlot([...log], { limit }, now + reply.waitMs).kind).toBe('taken');
          }
        }
      }),
    );
  });

  test('keeps a full window between a call that left late and the call that takes its slot', () => {
    const late = fc.tuple(fc.constantFrom(0, 1, 300, 20_000, 59_900), fc.integer({ min: 0, max: 2_000 }));
    fc.assert(
      fc.property(upTo(4), fc.array(late, { maxLength: 60 }), (limit, steps) => {
        const log: number[] = [];
        const latest: number[] = [];
        let now = instant(0);
        for (const [gap, lateMs] of steps) {
          now += gap;
          if (takeSlot(log, { limit, lateMs }, now).kind === 'refused') continue;
          latest.push(now + lateMs);
          expect(latest.filter((at) => at + ceilingWindowMs > now).length).toBeLessThanOrEqual(limit);
        }
      }),
    );
  });

  test('forecasts the slot of the k-th call exactly when no other call comes, also after the limit changed', () => {
    fc.assert(
      fc.property(upTo(5), upTo(12), gaps, upTo(17), (limit, before, steps, k) => {
        const log: number[] = [];
        let now = instant(0);
        for (const gap of steps) takeSlot(log, { limit: before }, (now += gap));
        const forecast = slotInMs(log, { limit, k }, now);
        let then = now;
        for (let at = 1; at <= k; at += 1) {
          let reply = takeSlot(log, { limit }, then);
          if (reply.kind === 'refused') reply = takeSlot(log, { limit }, (then += reply.waitMs));
          expect(reply.kind).toBe('taken');
        }
        expect(forecast).toBeCloseTo(then - now, 3);
        expect(log.filter((at) => at > then - ceilingWindowMs).length).toBeLessThanOrEqual(limit);
      }),
    );
  });

  test('counts no call twice that was sent since the positions were determined', () => {
    const short = fc.array(fc.constantFrom(0, 1, 40, 700, 9_000), { maxLength: 80 });
    fc.assert(
      fc.property(upTo(50), short, fc.nat(10), upTo(80), (limit, steps, sentSince, k) => {
        const log: number[] = [];
        let now = instant(0);
        for (const gap of steps) takeSlot(log, { limit }, (now += gap));
        const asOf = now;
        for (let n = 0; n < sentSince; n += 1) takeSlot(log, { limit: Infinity }, (now += 1));
        const view = { log, day: null };
        const limits = { perMinute: limit, perDay: null };
        const waitMs = slotInMs(log, { limit, k: Math.max(1, k - sentSince) }, now);
        const held = [{ waitMs, heldBy: 'ceiling_minute' }];
        expect(holdsIn(view, limits, { positions: [k], asOf, now })).toEqual(held);
        const [first] = holdsIn(view, limits, { positions: [1], asOf: null, now });
        const { remaining, nextSlotMs } = minuteState(view, limit, now);
        expect(first?.waitMs === 0).toBe(remaining > 0);
        if (log.length > 0) expect(nextSlotMs).toBeLessThanOrEqual(ceilingWindowMs);
      }),
    );
  });

  test('says what is left of a day, which ends by its own time', () => {
    const now = instant(0);
    const view = { log: [], day: { calls: 3, endsAt: now + 1_000 } };
    const limits = { perMinute: null, perDay: 4 };
    const asked = { positions: [1, 2], asOf: null, now };
    expect(holdsIn(view, limits, asked)).toEqual([
      { waitMs: 0, heldBy: 'ceiling_minute' },
      { waitMs: 1_000, heldBy: 'ceiling_day' },
    ]);
    expect(dayState(view, 4, now + 400)).toEqual({ limit: 4, remaining: 1, nextSlotMs: 600 });
    const none = { log: [], day: null };
    expect(dayState(none, 4, now)).toEqual({ limit: 4, remaining: 4, nextSlotMs: 0 });
    const nextDay = { waitMs: dayMs, heldBy: 'ceiling_day' };
    expect(holdsIn(none, { ...limits, perDay: 1 }, asked)[1]).toEqual(nextDay);
  });

  test('frees a slot that is given back at once, and only that slot', () => {
    const log: number[] = [];
    for (const ms of [10, 20]) takeSlot(log, { limit: 2 }, instant(ms));
    for (const ms of [20, 20, 5]) giveSlotBack(log, instant(ms));
    expect(log).toEqual([instant(10)]);
    expire(log, instant(10 + ceilingWindowMs));
    expect(log).toEqual([]);
  });
});

atOrigins('the day of an embedded ceiling', (instant) => {
  test('begins with its first call, and a new one 24 hours later by their own clock', async () => {
    const ceiling = { key: ceilingKey('w'), perMinute: null, perDay: 1 };
    const clock = new FakeClock();
    const ceilings = new CeilingStore(shiftedClock(clock, instant(0)));
    const later = async (ms: number): Promise<void> => {
      clock.outside(clock.monotonic() + ms, () => {});
      await clock.run(clock.monotonic() + ms);
    };
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'taken' });
    await later(dayMs - 1);
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'refused', isDaily: true, waitMs: 1 });
    expect(await ceilings.dayState(ceiling)).toEqual({ limit: 1, remaining: 0, nextSlotMs: 1 });
    await later(1);
    expect(await ceilings.dayState(ceiling)).toEqual({ limit: 1, remaining: 1, nextSlotMs: 0 });
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'taken' });
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'refused', waitMs: dayMs });
  });
});
