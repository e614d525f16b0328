/** Calls in flight of a bucket over all its lanes: no more than `maxInFlightTotal`, or than refusals taught, and forecasts count on it. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { leaseToken, ticketId } from '../../../src/ids.ts';
import type { BucketSetting, Settlement } from '../../../src/limiter/limiter.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { raiseEveryMs } from '../../../src/limiter/policy/in-flight.policy.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { type Granted, pump } from '../../../src/limiter/policy/pump.policy.ts';
import { reconfigure } from '../../../src/limiter/policy/scheduler.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, call, newBucket, replica } from './scheduling.ts';

const leaseMs = 15_000;
const lanes = ['a', 'b', 'c'];
const capOf = (maxInFlightTotal: number | null): BucketSetting => ({
  meters: [],
  learn: true,
  probe: 0,
  ...(maxInFlightTotal === null ? {} : { maxInFlightTotal }),
});

const succeeded: Settlement = { kind: 'succeeded', spent: null };

/** So many calls of each lane that came at once. */
function crowd(
  bucket: Bucket,
  { calls, cap, now, ...more }: AdmissionOptions & { calls: number; cap: number | null; now: number },
): Granted[] {
  const grants: Granted[] = [];
  for (let n = 0; n < calls; n += 1)
    for (const lane of lanes) {
      const options = { ...more, lane, setting: capOf(cap), leaseMs };
      grants.push(...admit(bucket, call(`${lane}${n}`, options), replica, now).effects.grants);
    }
  return grants;
}

const names = (grants: readonly Granted[]): string[] => grants.map(({ ticket }) => ticket);

atOrigins('a bucket with a cap on calls in flight', (instant) => {
  const end = (bucket: Bucket, lease: string, settlement: Settlement, ms: number) =>
    settle(bucket, { lease: leaseToken(lease), settlement, lesson: null }, instant(ms)).grants;

  test('never has more leases than that, however calls end', () => {
    const ways: Settlement[] = [
      succeeded,
      { kind: 'dropped' },
      { kind: 'unknown' },
      { kind: 'returned', sleepMs: 300, because: 'backoff' },
      { kind: 'throttled', closeMs: 0, requeue: true, sleepMs: 200 },
      { kind: 'throttled', closeMs: 400, requeue: false, sleepMs: 0 },
    ];
    const ending = fc.record({
      which: fc.nat(),
      way: fc.constantFrom(...ways),
      afterMs: fc.constantFrom(0, 1, 250, 20_000),
    });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 4 }), fc.array(ending, { maxLength: 40 }), (cap, endings) => {
        const bucket = newBucket(instant);
        const held = crowd(bucket, { calls: 8, cap, now: instant(1_000) });
        let ms = 1_000;
        const check = (): void => {
          expect(bucket.leases.size).toBeLessThanOrEqual(cap);
          const { closedUntil, asleep, pilotAfter, waiting } = bucket;
          const isHeld = closedUntil !== null || asleep.size > 0 || pilotAfter !== null || waiting === 0;
          if (!isHeld) expect(bucket.leases.size).toBe(cap);
        };
        check();
        for (const { which, way, afterMs } of endings) {
          ms += afterMs;
          bucket.replicas.set(replica, instant(ms));
          const [lease] = held.splice(which % Math.max(1, held.length), 1);
          if (lease !== undefined) held.push(...end(bucket, lease.lease, way, ms));
          check();
        }
      }),
    );
  });

  test.each([
    ['a call succeeds', succeeded],
    ['a call is dropped', { kind: 'dropped' }],
    ['a call is refused for itself', { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: 0 }],
  ] as const)('has a place again when %s', (_how, settlement) => {
    const bucket = newBucket(instant);
    const [first, ...others] = crowd(bucket, { calls: 2, cap: 2, now: instant(1_000) });
    expect(names(others)).toEqual(['b0']);
    expect(names(end(bucket, first?.lease ?? '', settlement, 1_100))).toEqual(['c0']);
  });

  test('has a place again when the lease of a call whose fate is unknown ends', () => {
    const bucket = newBucket(instant);
    const [first] = crowd(bucket, { calls: 1, cap: 1, now: instant(1_000) });
    expect(end(bucket, first?.lease ?? '', { kind: 'unknown' }, 1_100)).toEqual([]);
    expect(forecast(bucket, ticketId('b0'), instant(1_100))).toEqual({
      waitMs: leaseMs,
      ahead: 0,
      heldBy: 'serialized',
    });
    bucket.replicas.set(replica, instant(1_100 + leaseMs));
    expect(pump(bucket, instant(1_099 + leaseMs)).grants).toEqual([]);
    expect(names(pump(bucket, instant(1_100 + leaseMs)).grants)).toEqual(['b0']);
  });

  test('has a place again when a lease is not renewed, and says when', () => {
    const bucket = newBucket(instant);
    crowd(bucket, { calls: 1, cap: 1, now: instant(1_000) });
    expect(pump(bucket, instant(1_000)).nextAt).toBe(instant(1_000 + leaseMs));
    bucket.replicas.set(replica, instant(1_000 + leaseMs));
    expect(names(pump(bucket, instant(1_000 + leaseMs)).grants)).toEqual(['b0']);
  });

  test('gives its places to lanes in turn', () => {
    const bucket = newBucket(instant);
    for (const id of ['a0', 'a1', 'a2', 'a3'])
      admit(bucket, call(id, { lane: 'a', setting: capOf(1) }), replica, instant(1_000));
    admit(bucket, call('b0', { lane: 'b', setting: capOf(1) }), replica, instant(1_000));
    const order: string[] = [];
    let lease = [...bucket.leases.keys()][0];
    for (let ms = 1_100; lease !== undefined; ms += 100) {
      const [next] = end(bucket, lease, succeeded, ms);
      if (next !== undefined) order.push(next.ticket);
      lease = next?.lease;
    }
    expect(order.indexOf('b0')).toBeLessThan(order.indexOf('a2'));
    expect(order).toHaveLength(4);
  });

  test('grants nothing while calls of other replicas may hold its places', () => {
    const bucket = newBucket(instant);
    bucket.withheld = { what: 'capped_lanes', until: instant(9_000) };
    expect(crowd(bucket, { calls: 1, cap: 2, now: instant(1_000) })).toEqual([]);
    expect(pump(bucket, instant(1_000)).nextAt).toBe(instant(9_000));
    bucket.replicas.set(replica, instant(9_000));
    expect(names(pump(bucket, instant(9_000)).grants)).toEqual(['a0', 'b0']);
  });

  test('is named as what holds a call, also while nobody knows how long calls take', () => {
    const bucket = newBucket(instant);
    crowd(bucket, { calls: 1, cap: 2, now: instant(1_000) });
    expect(forecast(bucket, ticketId('c0'), instant(1_000))).toEqual({
      waitMs: 0,
      ahead: 0,
      heldBy: 'serialized',
    });
  });

  test('forecasts the rounds of all lanes together', () => {
    const bucket = newBucket(instant);
    let held = crowd(bucket, { calls: 8, cap: 2, now: instant(1_000) });
    const startsAt = (): Map<string, number> => {
      const starts = new Map<string, number>();
      for (let ms = now + 400; held.length > 0; ms += 400) {
        held = held.flatMap(({ lease }) => end(bucket, lease, succeeded, ms));
        for (const { ticket } of held) starts.set(ticket, ms);
      }
      return starts;
    };
    let now = 1_000;
    // Long enough for the mean to be known.
    for (let round = 0; round < 4; round += 1) {
      now += 400;
      held = held.flatMap(({ lease }) => end(bucket, lease, succeeded, now));
    }
    const { waitMs, heldBy } = forecast(bucket, ticketId('c7'), instant(now)) ?? { waitMs: 0, heldBy: '' };
    const leftAt = startsAt().get('c7') ?? 0;
    expect(heldBy).toBe('serialized');
    expect(waitMs).toBeLessThanOrEqual(leftAt - now);
    // Of 24 calls 14 go before it. The mean begins at 0 and grows slowly.
    expect(waitMs).toBeGreaterThan((leftAt - now) / 3);
  });

  test('refuses a call at once that would wait too long for a place', () => {
    const bucket = newBucket(instant);
    crowd(bucket, { calls: 1, cap: 3, now: instant(1_000) });
    const late = call('late', { lane: 'd', setting: capOf(3), maxWaitMs: 2_000 });
    expect(admit(bucket, late, replica, instant(9_000))).toMatchObject({
      kind: 'refused',
      reason: 'wait_too_long',
      heldBy: 'serialized',
    });
  });

  test('that is raised or taken away lets waiting calls go', () => {
    const bucket = newBucket(instant);
    crowd(bucket, { calls: 3, cap: 2, now: instant(1_000) });
    const raised = reconfigure(bucket, { setting: capOf(4), lanes: [] }, instant(1_200));
    expect(names(raised.grants)).toEqual(['c0', 'a1']);
    expect(reconfigure(bucket, { setting: capOf(null), lanes: [] }, instant(1_300)).grants).toHaveLength(5);
  });

  test('that is lowered lets none go until so many have ended', () => {
    const bucket = newBucket(instant);
    const held = crowd(bucket, { calls: 3, cap: 4, now: instant(1_000) });
    reconfigure(bucket, { setting: capOf(2), lanes: [] }, instant(1_200));
    const after = held.map(({ lease }) => end(bucket, lease, succeeded, 1_300).length);
    expect(after).toEqual([0, 0, 1, 1]);
  });
});

atOrigins('a bucket whose upstream refuses calls because too many are in flight', (instant) => {
  const tooMany = {
    meters: [],
    throttle: { kind: 'rate', waitMs: 1_000, meter: null },
    refusesConcurrency: true,
  } as const;
  const throttled: Settlement = { kind: 'throttled', closeMs: 1_000, requeue: true, sleepMs: 0 };

  /** Nine calls go at once to an upstream that takes three: it refuses six of them. */
  function refusedSix(stated: number | null = null): { bucket: Bucket; served: Granted[] } {
    const bucket = newBucket(instant);
    const held = crowd(bucket, { calls: 3, cap: stated, now: instant(1_000) });
    for (const { lease } of held.slice(3)) {
      const lesson = { feedback: tooMany, sentAt: instant(1_000), headAt: instant(1_010) };
      settle(bucket, { lease: leaseToken(lease), settlement: throttled, lesson }, instant(1_010));
    }
    return { bucket, served: held.slice(0, 3) };
  }

  const grantsAt = (bucket: Bucket, ms: number): number => {
    bucket.replicas.set(replica, instant(ms));
    return pump(bucket, instant(ms)).grants.length;
  };

  test('has as many in flight afterwards as were not refused', () => {
    const { bucket, served } = refusedSix();
    expect(grantsAt(bucket, 2_010)).toBe(0);
    expect(forecast(bucket, ticketId('c2'), instant(2_010))?.heldBy).toBe('serialized');
    for (const { lease } of served)
      settle(bucket, { lease: leaseToken(lease), settlement: succeeded, lesson: null }, instant(2_020));
    expect(bucket.leases.size).toBe(3);
  });

  test('has as many as before where nothing is to be learned, and where that is said later', () => {
    const pinned = newBucket(instant);
    const [only] = crowd(pinned, { calls: 1, cap: null, now: instant(1_000) });
    reconfigure(pinned, { setting: { ...capOf(null), learn: false }, lanes: [] }, instant(1_000));
    const lesson = { feedback: tooMany, sentAt: instant(1_000), headAt: instant(1_010) };
    settle(pinned, { lease: leaseToken(only?.lease ?? ''), settlement: throttled, lesson }, instant(1_010));
    expect(pinned.learnedInFlight).toBeNull();

    const { bucket } = refusedSix();
    expect(bucket.learnedInFlight).not.toBeNull();
    reconfigure(bucket, { setting: { ...capOf(null), learn: false }, lanes: [] }, instant(1_010));
    expect(bucket.learnedInFlight).toBeNull();
  });

  test('tries one more after each minute without such a refusal', () => {
    const { bucket } = refusedSix();
    for (const [ms, size] of [
      [raiseEveryMs - 1, 3],
      [raiseEveryMs, 4],
      [2 * raiseEveryMs, 5],
    ] as const) {
      // The leases of served calls would have ended meanwhile.
      for (const lease of bucket.leases.values())
        bucket.expiries.set(lease.token, instant(10 * raiseEveryMs));
      grantsAt(bucket, 1_010 + ms);
      expect(bucket.leases.size).toBe(size);
    }
  });

  test('never has more in flight than is stated, and always one', () => {
    const { bucket } = refusedSix(9);
    bucket.replicas.set(replica, instant(1_010));
    reconfigure(bucket, { setting: capOf(2), lanes: [] }, instant(1_010));
    expect(grantsAt(bucket, 30_000)).toBe(2);

    const single = newBucket(instant);
    const [only] = crowd(single, { calls: 1, cap: 1, now: instant(1_000) });
    const lesson = { feedback: tooMany, sentAt: instant(1_000), headAt: instant(1_010) };
    settle(single, { lease: leaseToken(only?.lease ?? ''), settlement: throttled, lesson }, instant(1_010));
    expect(grantsAt(single, 2_010)).toBe(1);
  });
});
