import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { ceilingKey } from '../../../src/ids.ts';
import {
  ceilingWindowMs,
  expire,
  giveSlotBack,
  slotInMs,
  takeSlot,
} from '../../../src/limiter/policy/ceiling.policy.ts';
import { CeilingStore } from '../../../src/limiter/ceiling-store.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { shiftedClock } from '../../support/shifted-clock.ts';
import { atOrigins } from '../../support/at-origins.ts';

const dayMs = 86_400_000;

const gaps = fc.array(fc.constantFrom(0, 1, 500, 7_000, 20_000, 60_000), { minLength: 1, maxLength: 80 });

atOrigins('the sliding log of a ceiling', (instant) => {
  test('never holds more sends in a window than the limit, and refuses only when it is full', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 6 }), gaps, (limit, steps) => {
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
            expect(reply.remaining).toBe(limit - inWindow - 1);
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
    const late = fc.record({
      gap: fc.constantFrom(0, 1, 300, 20_000, 59_900),
      lateMs: fc.integer({ min: 0, max: 2_000 }),
    });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 4 }), fc.array(late, { maxLength: 60 }), (limit, steps) => {
        const log: number[] = [];
        const sent: { readonly earliest: number; readonly latest: number }[] = [];
        let now = instant(0);
        for (const { gap, lateMs } of steps) {
          now += gap;
          if (takeSlot(log, { limit, lateMs }, now).kind === 'refused') continue;
          sent.push({ earliest: now, latest: now + lateMs });
          const between = sent.filter(({ latest }) => latest + ceilingWindowMs > now);
          expect(between.length).toBeLessThanOrEqual(limit);
        }
      }),
    );
  });

  test('forecasts the slot of the k-th call exactly when no other call comes, also after the limit changed', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 5 }),
        fc.integer({ min: 1, max: 12 }),
        gaps,
        fc.integer({ min: 1, max: 17 }),
        (limit, before, steps, k) => {
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
        },
      ),
    );
  });

  test('frees a slot that is given back at once, and only that slot', () => {
    const log: number[] = [];
    takeSlot(log, { limit: 2 }, instant(10));
    takeSlot(log, { limit: 2 }, instant(20));
    giveSlotBack(log, instant(20));
    giveSlotBack(log, instant(20));
    giveSlotBack(log, instant(5));
    expect(log).toEqual([instant(10)]);
    expire(log, instant(10 + ceilingWindowMs));
    expect(log).toEqual([]);
  });
});

atOrigins('the embedded ceilings', (instant) => {
  test('take no slot of the minute when the day refuses', async () => {
    const ceilings = new CeilingStore(shiftedClock(new FakeClock(), instant(0)));
    const ceiling = { key: ceilingKey('w'), perMinute: 10, perDay: 2 };
    const kinds: string[] = [];
    for (let at = 0; at < 5; at += 1) kinds.push((await ceilings.take(ceiling)).kind);
    expect(kinds).toEqual(['taken', 'taken', 'refused', 'refused', 'refused']);
    expect(await ceilings.state(ceiling)).toMatchObject({ limit: 10, remaining: 8 });
  });

  test('free a slot of the minute and one of the day when it is given back', async () => {
    const ceilings = new CeilingStore(shiftedClock(new FakeClock(), instant(0)));
    const ceiling = { key: ceilingKey('w'), perMinute: 1, perDay: 1 };
    const first = await ceilings.take(ceiling);
    if (first.kind === 'taken') await ceilings.giveSlotBack(ceiling, first.slot);
    expect((await ceilings.take(ceiling)).kind).toBe('taken');
    expect((await ceilings.take(ceiling)).kind).toBe('refused');
  });

  test('begin a day with its first call, and a new one 24 hours later by their own clock', async () => {
    const clock = new FakeClock();
    const ceilings = new CeilingStore(shiftedClock(clock, instant(0)));
    const ceiling = { key: ceilingKey('w'), perMinute: null, perDay: 1 };
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'taken' });
    await later(clock, dayMs - 1);
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'refused', isDaily: true, waitMs: 1 });
    expect(await ceilings.dayState(ceiling)).toEqual({ limit: 1, remaining: 0, nextSlotMs: 1 });
    await later(clock, 1);
    expect(await ceilings.dayState(ceiling)).toEqual({ limit: 1, remaining: 1, nextSlotMs: 0 });
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'taken' });
    expect(await ceilings.take(ceiling)).toMatchObject({ kind: 'refused', waitMs: dayMs });
  });

  test('leave the day alone when a slot of the day before is given back', async () => {
    const clock = new FakeClock();
    const ceilings = new CeilingStore(shiftedClock(clock, instant(0)));
    const ceiling = { key: ceilingKey('w'), perMinute: null, perDay: 1 };
    const first = await ceilings.take(ceiling);
    await later(clock, dayMs);
    if (first.kind === 'taken') await ceilings.giveSlotBack(ceiling, first.slot);
    expect((await ceilings.take(ceiling)).kind).toBe('taken');
    if (first.kind === 'taken') await ceilings.giveSlotBack(ceiling, first.slot);
    expect((await ceilings.take(ceiling)).kind).toBe('refused');
  });
});

async function later(clock: FakeClock, ms: number): Promise<void> {
  const at = clock.monotonic() + ms;
  clock.outside(at, () => {});
  await clock.run(at);
}
