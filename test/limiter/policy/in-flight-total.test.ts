/** Calls in flight of a bucket over all its lanes: no more than `maxInFlightTotal`, or than refusals taught, and forecasts count on it. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { BucketSetting, Settlement } from '../../../src/limiter/limiter.ts';
import { raiseEveryMs } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { done, dropped, names, returned, TestBucket, throttled, unknown } from './scheduling.ts';

const capOf = (cap: number | null, learn = true): BucketSetting => {
  return { meters: [], learn, probe: 0, ...(cap === null ? {} : { maxInFlightTotal: cap }) };
};

/** A bucket into which so many calls of each of three lanes came at once, and those of them that left. */
function crowd(instant: Instant, calls: number, cap: number | null): { line: TestBucket; sent: string[] } {
  const line = new TestBucket(instant, { setting: capOf(cap) });
  const sent = names(calls, '').flatMap((n) =>
    ['a', 'b', 'c'].flatMap((lane) => line.enter([lane + n], { lane })),
  );
  return { line, sent };
}

atOrigins('a bucket with a cap on calls in flight', (instant) => {
  test('never has more leases than that, however calls end', () => {
    const ways: Settlement[] = [
      done,
      dropped,
      unknown,
      returned('backoff', 300),
      throttled(0, { requeue: true, sleepMs: 200 }),
      throttled(400),
    ];
    const ending = fc.tuple(fc.nat(), fc.constantFrom(...ways), fc.constantFrom(0, 1, 250, 20_000));
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 4 }), fc.array(ending, { maxLength: 40 }), (cap, endings) => {
        const { line, sent } = crowd(instant, 8, cap);
        const check = (): void => {
          const { leases, closedUntil, asleep, pilot, waiting } = line.bucket;
          expect(leases.size).toBeLessThanOrEqual(cap);
          const isHeld = closedUntil !== null || asleep.size > 0 || pilot !== null || waiting === 0;
          if (!isHeld) expect(leases.size).toBe(cap);
        };
        check();
        for (const [which, way, afterMs] of endings) {
          line.later(afterMs);
          const [ticket] = sent.splice(which % Math.max(1, sent.length), 1);
          if (ticket !== undefined) sent.push(...line.settle(ticket, way));
          check();
        }
      }),
    );
  });

  test('forecasts the rounds of all lanes together', () => {
    const { line, sent } = crowd(instant, 8, 2);
    let held = sent;
    const round = (): void => {
      line.later(400);
      held = held.flatMap((ticket) => line.settle(ticket));
    };
    // Long enough for the mean to be known.
    for (let rounds = 0; rounds < 4; rounds += 1) round();
    const asked = line.ms;
    const { waitMs, heldBy } = line.forecast('c7') ?? { waitMs: 0, heldBy: '' };
    while (!held.includes('c7')) round();
    expect(heldBy).toBe('serialized');
    expect(waitMs).toBeLessThanOrEqual(line.ms - asked);
    // Of 24 calls 14 go before it. The mean begins at 0 and grows slowly.
    expect(waitMs).toBeGreaterThan((line.ms - asked) / 3);
  });
});

atOrigins('a bucket whose upstream refuses calls because too many are in flight', (instant) => {
  const refuse = (line: TestBucket, ticket: string): string[] => {
    const throttle = { kind: 'rate', waitMs: 1_000, meter: null } as const;
    const lesson = line.lesson({ throttle, refusesConcurrency: true }, 1_000);
    return line.settle(ticket, throttled(1_000, { requeue: true }), lesson);
  };

  /** Nine calls go at once to an upstream that takes three: it refuses six of them. */
  function refusedSix(stated: number | null = null): TestBucket {
    const { line, sent } = crowd(instant, 3, stated);
    line.at(1_010);
    for (const ticket of sent.slice(3)) refuse(line, ticket);
    return line;
  }

  test('has as many in flight afterwards as were not refused', () => {
    const line = refusedSix().at(2_010);
    expect(line.pump()).toEqual([]);
    expect(line.forecast('c2')?.heldBy).toBe('serialized');
    for (const ticket of ['a0', 'b0', 'c0']) line.settle(ticket);
    expect(line.bucket.leases.size).toBe(3);
  });

  test('has as many as before where nothing is to be learned, and where that is said later', () => {
    const { line } = crowd(instant, 1, null);
    line.reconfigure({}, capOf(null, false));
    refuse(line, 'a0');
    expect(line.bucket.learnedInFlight).toBeNull();

    const learned = refusedSix();
    expect(learned.bucket.learnedInFlight).not.toBeNull();
    learned.reconfigure({}, capOf(null, false));
    expect(learned.bucket.learnedInFlight).toBeNull();
  });

  test('tries one more after each minute without such a refusal', () => {
    const line = refusedSix();
    for (const [ms, size] of [
      [raiseEveryMs - 1, 3],
      [raiseEveryMs, 4],
      [2 * raiseEveryMs, 5],
    ] as const) {
      // The leases of served calls would have ended meanwhile.
      for (const token of line.bucket.leases.keys())
        line.bucket.expiries.set(token, instant(10 * raiseEveryMs));
      line.at(1_010 + ms).pump();
      expect(line.bucket.leases.size).toBe(size);
    }
  });

  test('never has more in flight than is stated, and always one', () => {
    const line = refusedSix(9);
    line.reconfigure({}, capOf(2));
    expect(line.at(30_000).pump()).toHaveLength(2);

    const single = crowd(instant, 1, 1).line.at(1_010);
    refuse(single, 'a0');
    expect(single.at(2_010).pump()).toHaveLength(1);
  });
});
