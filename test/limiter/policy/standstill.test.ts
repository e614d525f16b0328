/** Forecasts where a line does not simply drain: behind a standstill, and under several described windows at once. */
import { expect, test } from '@jest/globals';
import type { MeterName } from '../../../src/call.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { names, returned, TestBucket, throttled, unknown } from './scheduling.ts';

atOrigins('a line behind a standstill', (instant) => {
  const stillMs = 40_000;
  // Three calls leave at once, and then one a second; one in back-off stands before the ten others.
  test.each([
    ['a closed bucket', throttled(stillMs), null, 'closed', 0],
    ['a lane that backs off', returned('backoff', stillMs), null, 'closed', 1_000],
    ['a lane whose only place a call of unknown fate keeps', unknown, 1, 'serialized', 0],
  ] as const)('goes at the pace of its meter afterwards: %s', (_, ending, maxInFlight, heldBy, behindMs) => {
    const line = new TestBucket(instant, { limit: 3, windowMs: 3_000, leaseMs: stillMs, maxInFlight });
    line.enter(['first']);
    line.settle('first', ending);
    line.enter(names(10));
    const last = line.forecast('t9') ?? { waitMs: 0, heldBy: '' };
    expect(last.heldBy).toBe(heldBy);
    expect(last.waitMs).toBeGreaterThan(stillMs + 6_000 + behindMs);
    expect(last.waitMs).toBeLessThan(stillMs + 8_500 + behindMs);
    if (maxInFlight !== null) return;
    expect(Math.abs(line.leavesAt('t9') - 1_000 - last.waitMs)).toBeLessThan(2_000);
  });
});

atOrigins('the forecast under two windows', (instant) => {
  test.each([
    ['rolling', [1, 1], [40, 60], 60],
    ['fixed', [1, 1], [40, 60], 60],
    ['rolling', [5, 2], [40, 60], 130],
    ['fixed', [5, 2], [40, 60], 130],
    ['rolling', [3, 20], [6, 60], 20],
  ] as const)('is when the call leaves: %s, %j and %j calls and seconds', (counts, short, long, calls) => {
    const meter = (name: MeterName, [limit, seconds]: readonly [number, number]) => {
      return { meter: name, limit, windowMs: seconds * 1_000, counts };
    };
    const meters = [meter('requests_burst', short), meter('requests', long)];
    const costs = { requests: 1, requests_burst: 1 };
    const line = new TestBucket(instant, { meters, costs });
    const told = new Map<string, number>();
    for (const ticket of names(calls)) {
      const reply = line.admit(ticket);
      told.set(ticket, reply.kind === 'queued' ? 1_000 + reply.forecastMs : 1_000);
    }
    const left = line.run(600_000);
    for (const [ticket, at] of left) {
      const wrongMs = (told.get(ticket) ?? 0) - at;
      // By no more than the shorter window.
      expect(Math.abs(wrongMs)).toBeLessThanOrEqual(short[1] * 1_100);
    }
    expect(left.size).toBeGreaterThan(calls / 2);
  });
});
