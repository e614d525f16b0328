import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  ceilingWindowMs,
  slotInMs,
  sentSince,
  takeSlot,
} from '../../../src/limiter/policy/ceiling.policy.ts';
import {
  minWaitMs,
  positionsToRead,
  sentBefore,
  type SlotsRead,
} from '../../../src/limiter/policy/ceiling-read.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';

/** What a store would report of the log now. */
function read(log: readonly number[], limit: number, positions: readonly number[], now: number): SlotsRead {
  const waits = new Map(positions.map((k) => [k, slotInMs(log, { limit, k }, now)]));
  return {
    at: now,
    limit,
    ofDay: 0,
    dayEndsInMs: 0,
    live: log.filter((at) => at + ceilingWindowMs > now).length,
    waits,
    oldestMs: 0,
  };
}

const history = fc.record({
  limit: fc.integer({ min: 1, max: 200 }),
  /** Times between sends before the read. */
  before: fc.array(fc.constantFrom(0, 1, 40, 700, 9_000), { maxLength: 250 }),
  /** Times between sends after it. */
  after: fc.array(fc.constantFrom(0, 1, 3, 20, 60), { maxLength: 40 }),
  k: fc.integer({ min: 1, max: 250 }),
  ageMs: fc.integer({ min: 0, max: 250 }),
});

atOrigins('a snapshot of a ceiling’s slots', (instant) => {
  test('shows the least wait of a position, whatever was sent since', () => {
    fc.assert(
      fc.property(history, ({ limit, before, after, k, ageMs }) => {
        const log: number[] = [];
        let now = instant(0);
        for (const gap of before) takeSlot(log, { limit }, (now += gap));
        const readAt = now;
        const known = read(log, limit, positionsToRead(limit, [k]), readAt);
        for (const gap of after) if (now + gap <= readAt + ageMs) takeSlot(log, { limit }, (now += gap));
        now = readAt + ageMs;
        const waitMs = slotInMs(log, { limit, k }, now);
        const least = minWaitMs(known, k, now);
        expect(least).not.toBeNull();
        expect(least).toBeLessThanOrEqual(waitMs);
      }),
    );
  });

  test('states at least the sends just before it, up to sixteen', () => {
    fc.assert(
      fc.property(history, fc.integer({ min: 0, max: 800 }), ({ limit, before, k }, ms) => {
        const log: number[] = [];
        let now = instant(0);
        for (const gap of before) takeSlot(log, { limit }, (now += gap));
        const sent = sentSince(log, now - ms);
        const reported = sentBefore(read(log, limit, positionsToRead(limit, [k]), now), ms);
        expect(reported).toBe(Math.min(sent, 16));
      }),
    );
  });

  test('states nothing about a position far from those that were read', () => {
    const log = Array.from({ length: 1_000 }, (_, index) => index);
    const known = read(log, 1_000, positionsToRead(1_000, [300]), 2_000);
    expect(known.waits.size).toBeLessThan(120);
    expect(minWaitMs(known, 310, 2_000)).not.toBeNull();
    expect(minWaitMs(known, 500, 2_000)).toBeNull();
  });
});
