import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  ceilingWindowMs,
  dayState,
  holdsIn,
  minuteState,
  slotInMs,
  takeSlot,
} from '../../../src/limiter/policy/ceiling.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';

const dayMs = 86_400_000;

atOrigins('what was counted under a ceiling', (instant) => {
  test('says when each position finds a slot, and counts no call twice that was sent since the positions were determined', () => {
    const history = fc.record({
      limit: fc.integer({ min: 1, max: 50 }),
      gaps: fc.array(fc.constantFrom(0, 1, 40, 700, 9_000), { maxLength: 80 }),
      sentSince: fc.integer({ min: 0, max: 10 }),
      k: fc.integer({ min: 1, max: 80 }),
    });
    fc.assert(
      fc.property(history, ({ limit, gaps, sentSince, k }) => {
        const log: number[] = [];
        let now = instant(0);
        for (const gap of gaps) takeSlot(log, { limit }, (now += gap));
        const asOf = now;
        for (let n = 0; n < sentSince; n += 1) takeSlot(log, { limit: Infinity }, (now += 1));
        const view = { log, day: null };
        const limits = { perMinute: limit, perDay: null };
        const [hold] = holdsIn(view, limits, { positions: [k], asOf, now });
        const expected = slotInMs(log, { limit, k: Math.max(1, k - sentSince) }, now);
        expect(hold).toEqual({ waitMs: expected, heldBy: 'ceiling_minute' });
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
    expect(dayState({ log: [], day: null }, 4, now)).toEqual({ limit: 4, remaining: 4, nextSlotMs: 0 });
    const [, none] = holdsIn({ log: [], day: null }, { ...limits, perDay: 1 }, asked);
    expect(none).toEqual({ waitMs: dayMs, heldBy: 'ceiling_day' });
  });
});
