import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { ceilingWindowMs, placeInMs, sentSince, takePlace } from '../../src/limiter/policy/ceiling.policy.ts';
import {
  leastWaitMs,
  mostWaitMs,
  positionsToRead,
  sentBefore,
  type PlacesRead,
} from '../../src/limiter/policy/ceiling-read.policy.ts';
import { atOrigins } from './at-origins.ts';

/** What a store would tell of the log now. */
function read(log: readonly number[], limit: number, positions: readonly number[], now: number): PlacesRead {
  const waits = new Map(positions.map((k) => [k, placeInMs(log, limit, k, now)]));
  return { at: now, limit, day: null, live: log.filter((at) => at + ceilingWindowMs > now).length, waits };
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

atOrigins('a read of a ceiling’s places', (instant) => {
  test('bounds what a position waits, whatever was sent since', () => {
    fc.assert(
      fc.property(history, ({ limit, before, after, k, ageMs }) => {
        const log: number[] = [];
        let now = instant(0);
        for (const gap of before) takePlace(log, limit, (now += gap));
        const readAt = now;
        const known = read(log, limit, positionsToRead(limit, [k]), readAt);
        for (const gap of after) if (now + gap <= readAt + ageMs) takePlace(log, limit, (now += gap));
        now = readAt + ageMs;
        const waitMs = placeInMs(log, limit, k, now);
        const least = leastWaitMs(known, k, now) ?? -Infinity;
        const most = mostWaitMs(known, k, now) ?? Infinity;
        expect(least).toBeLessThanOrEqual(waitMs);
        // Beyond one window of places a further window counts from sends that the read cannot know.
        if (k + after.length <= limit) expect(most).toBeGreaterThanOrEqual(waitMs);
        expect(most).not.toBe(Infinity);
      }),
    );
  });

  test('tells at least the sends just before it, where there are not very many', () => {
    fc.assert(
      fc.property(history, fc.integer({ min: 0, max: 800 }), ({ limit, before, k }, ms) => {
        const log: number[] = [];
        let now = instant(0);
        for (const gap of before) takePlace(log, limit, (now += gap));
        const sent = sentSince(log, now - ms);
        const told = sentBefore(read(log, limit, positionsToRead(limit, [k]), now), ms);
        expect(told).toBe(Math.min(sent, 16));
      }),
    );
  });

  test('does not tell of a position far from those that were asked for', () => {
    const log = Array.from({ length: 1_000 }, (_, index) => index);
    const known = read(log, 1_000, positionsToRead(1_000, [300]), 2_000);
    expect(known.waits.size).toBeLessThan(170);
    expect(leastWaitMs(known, 320, 2_000)).not.toBeNull();
    expect(leastWaitMs(known, 500, 2_000)).toBeNull();
    expect(mostWaitMs(known, 500, 2_000)).toBeNull();
  });
});
