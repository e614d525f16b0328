import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { leaseToken, replicaId, ticketId } from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { drain } from '../../../src/limiter/policy/meter.policy.ts';
import { maxPerPump, pump, replicaLifeMs } from '../../../src/limiter/policy/pump.policy.ts';
import { SortedNames } from '../../../src/limiter/policy/sorted.policy.ts';
import {
  admit as admitAsClaimed,
  maxArrivalAgoMs,
  maxArrivalAheadMs,
} from '../../../src/limiter/policy/admit.policy.ts';
import { cancel } from '../../../src/limiter/policy/scheduler.policy.ts';
import { slotTaken, settle } from '../../../src/limiter/policy/settle.policy.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, call, newBucket, bucketWith, replica, tick } from './scheduling.ts';

const ids = (grants: readonly { readonly ticket: string }[]): string[] => grants.map(({ ticket }) => ticket);
function first<T>(list: readonly T[]): T {
  const [found] = list;
  if (found === undefined) throw new Error('nothing was granted');
  return found;
}

/** The whole state as text. */
function stateOf(bucket: Bucket): string {
  return JSON.stringify(bucket, (_, value: unknown) => {
    if (value instanceof SortedNames) return value.names().map((name) => [name, value.scoreOf(name)]);
    return value instanceof Map ? [...value] : value;
  });
}

atOrigins('a refusal', (instant) => {
  test('leaves the state of the bucket unchanged', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 30 }),
        fc.integer({ min: 0, max: 9_000 }),
        fc.boolean(),
        (calls, ms, full) => {
          const [one, other] = [bucketWith(instant, calls).bucket, bucketWith(instant, calls).bucket];
          const now = instant(1_000 + ms);
          const options = full ? { maxQueued: 0, lane: 'l' } : { maxWaitMs: -1, lane: 'new' };
          const reply = admit(one, call('x', options), replica, now);
          pump(other, now);
          for (const meter of [...one.meters.values(), ...other.meters.values()]) drain(meter, now);
          if (reply.kind !== 'refused') return;
          if (calls === 0) return;
          expect(stateOf(one)).toBe(stateOf(other));
        },
      ),
    );
  });

  test('comes at once and with the time when the wait is longer than the call has', () => {
    const { bucket } = bucketWith(instant, 12);
    expect(admit(bucket, call('x', { maxWaitMs: 100 }), replica, instant(1_000))).toMatchObject({
      kind: 'refused',
      reason: 'wait_too_long',
    });
    expect(admit(bucket, call('y', { maxQueued: 2 }), replica, instant(1_000))).toMatchObject({
      reason: 'queue_full',
    });
    expect(admit(bucket, call('z', { maxQueued: 4 }), replica, instant(1_000)).kind).toBe('queued');
  });
});

atOrigins('a repeated operation', (instant) => {
  test('enters a ticket once', () => {
    const { bucket } = bucketWith(instant, 12);
    const before = bucket.waiting;
    expect(admit(bucket, call('t11'), replica, instant(1_000)).kind).toBe('queued');
    expect(admit(bucket, call('t0'), replica, instant(1_000)).kind).toBe('granted');
    expect(bucket.waiting).toBe(before);
  });

  test('settles a lease once', () => {
    const { bucket, grants } = bucketWith(instant, 5);
    const { lease } = first(grants);
    settle(bucket, { lease, settlement: { kind: 'dropped' }, lesson: null }, instant(1_000));
    const after = stateOf(bucket);
    settle(bucket, { lease, settlement: { kind: 'dropped' }, lesson: null }, instant(1_000));
    settle(
      bucket,
      { lease, settlement: { kind: 'throttled', closeMs: 9_000, requeue: true, sleepMs: 0 }, lesson: null },
      instant(1_000),
    );
    slotTaken(bucket, { lease, edge: { slots: 0, nextSlotMs: 9_000 } }, instant(1_000));
    expect(stateOf(bucket)).toBe(after);
  });

  test('cancels a waiting ticket once and leaves a granted one alone', () => {
    const { bucket, grants } = bucketWith(instant, 12);
    const before = bucket.waiting;
    cancel(bucket, ticketId('t11'), instant(1_000));
    cancel(bucket, ticketId('t11'), instant(1_000));
    cancel(bucket, ticketId('t0'), instant(1_000));
    expect(bucket.waiting).toBe(before - 1);
    expect(bucket.leases.has(first(grants).lease)).toBe(true);
  });
});

atOrigins('one pump', (instant) => {
  test('does a bounded amount of work and asks to run again at once', () => {
    const { bucket } = bucketWith(instant, 1, { limit: 1_000, windowMs: 1_000, maxInFlight: 1 });
    for (let at = 0; at < 300; at += 1) {
      admit(
        bucket,
        call(`w${at}`, { limit: 1_000, windowMs: 1_000, maxInFlight: 1 }),
        replica,
        instant(1_000),
      );
    }
    for (const lane of bucket.lanes.values()) lane.maxInFlight = null;
    let now = instant(2_000);
    const granted: string[] = [];
    settle(
      bucket,
      {
        lease: first([...bucket.leases.keys()]),
        settlement: { kind: 'succeeded', spent: null },
        lesson: null,
      },
      now,
    );
    for (let round = 0; round < 10 && bucket.waiting > 0; round += 1) {
      const effects = tick(bucket, { replica, leases: [] }, now);
      expect(effects.grants.length).toBeLessThanOrEqual(maxPerPump);
      if (bucket.waiting > 0) expect(effects.nextAt).toBe(now);
      granted.push(...ids(effects.grants));
      now += 1;
    }
    expect(bucket.waiting).toBe(0);
    expect(granted).toEqual(
      [...granted].toSorted((one, other) => Number(one.slice(1)) - Number(other.slice(1))),
    );
  });
});

atOrigins('a lane', (instant) => {
  test('grants by urgency, then arrival, and a retried call keeps its position', () => {
    const { bucket, grants } = bucketWith(instant, 1, { limit: 100, maxInFlight: 1 });
    for (const [ticket, urgency] of [
      ['a', 3],
      ['b', 3],
      ['u', 0],
    ] as const) {
      admit(bucket, call(ticket, { limit: 100, maxInFlight: 1, urgency }), replica, instant(1_000));
    }
    let { lease } = first(grants);
    const requeue = { kind: 'throttled', closeMs: 50, requeue: true, sleepMs: 0 } as const;
    settle(bucket, { lease, settlement: requeue, lesson: null }, instant(1_000));
    const order: string[] = [];
    for (let now = instant(1_100); order.length < 4; now += 100) {
      const next = first(pump(bucket, now).grants);
      order.push(next.ticket);
      ({ lease } = next);
      bucket.closedUntil = now + 50;
      settle(bucket, { lease, settlement: { kind: 'succeeded', spent: null }, lesson: null }, now);
    }
    expect(order).toEqual(['u', 't0', 'a', 'b']);
  });

  test('grants by arrival, whichever call was entered first', () => {
    const { bucket, grants } = bucketWith(instant, 2, { limit: 100, maxInFlight: 1 });
    const now = instant(700_000);
    const enter = (ticket: string, agoMs: number, urgency = 3): unknown => {
      const asked = call(ticket, { limit: 100, maxInFlight: 1, urgency, arrivedAt: now - agoMs });
      return admitAsClaimed(bucket, { admission: asked, replica }, now);
    };
    for (let at = 14_000; at < 700_000; at += 14_000) {
      tick(bucket, { replica, leases: [first(grants).lease] }, instant(at));
    }
    tick(bucket, { replica, leases: [first(grants).lease] }, now);
    expect(enter('z', 0)).toMatchObject({ kind: 'queued', ahead: 1 });
    expect(enter('late', 200)).toMatchObject({ ahead: 1 });
    expect(enter('middle', 100)).toMatchObject({ ahead: 2 });
    expect(enter('urgent', 0, 1)).toMatchObject({ ahead: 0 });
    // Whatever arrival is claimed, a call goes neither before calls that have waited for long nor behind later ones.
    expect(enter('long', maxArrivalAgoMs)).toMatchObject({ ahead: 2 });
    expect(enter('boast', 1e9)).toMatchObject({ ahead: 2 });
    expect(enter('future', -1e9)).toMatchObject({ ahead: 7 });
    const soon = call('later', { limit: 100, maxInFlight: 1, arrivedAt: now + maxArrivalAheadMs + 1 });
    expect(admitAsClaimed(bucket, { admission: soon, replica }, now + maxArrivalAheadMs + 1)).toMatchObject({
      ahead: 8,
    });
    const order: string[] = [];
    let { lease } = first(grants);
    for (let at = 1; bucket.waiting > 0; at += 1) {
      const { grants: next } = settle(
        bucket,
        { lease, settlement: { kind: 'succeeded', spent: null }, lesson: null },
        now + 100 + at,
      );
      ({ lease } = first(next));
      order.push(first(next).ticket);
    }
    expect(order).toEqual(['urgent', 't1', 'boast', 'long', 'late', 'middle', 'z', 'future', 'later']);
  });

  test('keeps the position that another store gave, whatever its value', () => {
    const { bucket } = bucketWith(instant, 3, { limit: 100, maxInFlight: 1 });
    const asked = { ...call('again', { limit: 100, maxInFlight: 1, maxWaitMs: 0, maxQueued: 0 }) };
    const order = bucket.tickets.get(ticketId('t1'))?.order ?? 0;
    const kept = { kind: 'kept', order: order - 0.5 } as const;
    const reply = admitAsClaimed(
      bucket,
      { admission: { ...asked, position: kept }, replica },
      instant(2_000),
    );
    expect(reply).toMatchObject({ kind: 'queued', ahead: 0, order: order - 0.5 });
  });

  test('at its cap waits for a lease to end or, when its call is lost, to expire', () => {
    const { bucket, grants } = bucketWith(instant, 2, { maxInFlight: 1 });
    expect(ids(grants)).toEqual(['t0']);
    settle(
      bucket,
      { lease: first(grants).lease, settlement: { kind: 'unknown' }, lesson: null },
      instant(2_000),
    );
    expect(ids(pump(bucket, instant(16_999)).grants)).toEqual([]);
    tick(bucket, { replica, leases: [first(grants).lease] }, instant(16_999));
    expect(ids(pump(bucket, instant(17_000)).grants)).toEqual(['t1']);
  });

  test('has no more grants outstanding than slots are left under its ceiling', () => {
    const { bucket, grants } = bucketWith(instant, 1, { limit: 100 });
    slotTaken(bucket, { lease: first(grants).lease, edge: { slots: 2, nextSlotMs: 5_000 } }, instant(1_000));
    const replies = [1, 2, 3].map((at) =>
      admit(bucket, call(`x${at}`, { limit: 100 }), replica, instant(1_000)),
    );
    expect(replies.map(({ kind }) => kind)).toEqual(['granted', 'granted', 'queued']);
    const last = first(replies[1]?.effects.grants ?? []);
    expect(ids(slotTaken(bucket, { lease: last.lease, edge: null }, instant(1_000)).grants)).toEqual(['x3']);
  });

  test('sleeps when the last slot is taken, and wakes when one is free', () => {
    const { bucket, grants } = bucketWith(instant, 1, { limit: 100 });
    slotTaken(bucket, { lease: first(grants).lease, edge: { slots: 0, nextSlotMs: 5_000 } }, instant(1_000));
    const reply = admit(bucket, call('x', { limit: 100 }), replica, instant(1_500));
    expect(reply).toMatchObject({ kind: 'queued', forecastMs: 4_500, effects: { nextAt: instant(6_000) } });
    expect(ids(tick(bucket, { replica, leases: [] }, instant(6_000)).grants)).toEqual(['x']);
  });
});

atOrigins('a replica that is not heard of any more', (instant) => {
  test('leaves no waiting calls behind that count as ahead of others', () => {
    const bucket = newBucket(instant, 1);
    bucket.closedUntil = instant(60_000);
    const killed = replicaId('killed');
    for (let n = 0; n < 5; n += 1) admit(bucket, call(`k${n}`), killed, instant(1_000));
    const own = call('x');
    admit(bucket, own, replica, instant(1_001));
    tick(bucket, { replica, leases: [] }, instant(1_000 + replicaLifeMs));
    expect(forecast(bucket, own.ticket, instant(1_000 + replicaLifeMs))?.ahead).toBe(5);
    tick(bucket, { replica, leases: [] }, instant(1_001 + replicaLifeMs));
    expect(forecast(bucket, own.ticket, instant(1_001 + replicaLifeMs))?.ahead).toBe(0);
    expect(bucket.waiting).toBe(1);
  });

  test.each([
    [replicaLifeMs, 'goes', 'killed'],
    [replicaLifeMs + 1, 'does not go', 'own'],
  ])(
    'a call of a replica last heard of %s ms ago %s before those of living ones',
    (silentMs, _goes, next) => {
      const bucket = newBucket(instant);
      const capped = { limit: 100, maxInFlight: 1 };
      const { effects } = admit(bucket, call('under way', capped), replica, instant(1_000));
      admit(bucket, call('killed', capped), replicaId('killed'), instant(1_000));
      admit(bucket, call('own', capped), replica, instant(1_001));
      const { lease } = first(effects.grants);
      const ended = { lease, settlement: { kind: 'succeeded', spent: null }, lesson: null } as const;
      // Without a tick in between, which would forget the tickets of dead replicas.
      expect(ids(settle(bucket, ended, instant(1_000 + silentMs)).grants)).toEqual([next]);
    },
  );
});

atOrigins('a bucket', (instant) => {
  test('sends one probe until a response comes, and twice as many each time none does', () => {
    const bucket = newBucket(instant, 1);
    const options = { limit: 100, probe: 1 };
    const kinds = ['a', 'b', 'c', 'd', 'e'].map(
      (id) => admit(bucket, call(id, options), replica, instant(1_000)).kind,
    );
    expect(kinds).toEqual(['granted', 'queued', 'queued', 'queued', 'queued']);
    expect(ids(pump(bucket, instant(1_249)).grants)).toEqual([]);
    expect(ids(pump(bucket, instant(1_250)).grants)).toEqual(['b']);
    const reply = settle(
      bucket,
      {
        lease: first([...bucket.leases.keys()]),
        settlement: { kind: 'succeeded', spent: null },
        lesson: null,
      },
      instant(1_300),
    );
    expect(ids(reply.grants)).toEqual(['c', 'd', 'e']);
  });

  test('shares by weight, and makes a workspace that joins wait one round at most', () => {
    const bucket = newBucket(instant);
    const options = { limit: 1, windowMs: 10 };
    const enter = (id: string, lane: string, weight: number): void => {
      admit(bucket, call(id, { ...options, lane, weight }), replica, instant(1_000));
    };
    for (let at = 0; at < 200; at += 1) enter(`a${at}`, 'a', 3);
    for (let at = 0; at < 200; at += 1) enter(`b${at}`, 'b', 1);
    const order: string[] = [];
    for (let now = instant(1_100); order.length < 80; now += 20)
      order.push(...ids(tick(bucket, { replica, leases: [] }, now).grants));
    expect(Math.abs(order.filter((id) => id.startsWith('a')).length - 60)).toBeLessThanOrEqual(2);
    enter('new', 'c', 1);
    const next: string[] = [];
    for (let now = instant(4_000); !next.includes('new'); now += 20)
      next.push(...ids(tick(bucket, { replica, leases: [] }, now).grants));
    expect(next.length).toBeLessThanOrEqual(1 + 3 + 1 + 1);
  });

  test('makes a workspace that joins wait one round at most, however many grants others return', () => {
    const bucket = newBucket(instant);
    const options = { limit: 4, windowMs: 40_000 };
    const enter = (id: string): string[] => {
      const lane = id.slice(0, 1);
      return admit(bucket, call(id, { ...options, lane }), replica, instant(1_000)).effects.grants.map(
        ({ lease }) => lease,
      );
    };
    const early = ['a0', 'a1', 'a2', 'a3'].flatMap(enter);
    for (const id of ['a4', 'a5', 'a6', 'b0', 'b1']) expect(enter(id)).toEqual([]);
    const order = early.flatMap((lease) =>
      ids(
        settle(
          bucket,
          { lease: leaseToken(lease), settlement: { kind: 'dropped' }, lesson: null },
          instant(1_000),
        ).grants,
      ),
    );
    expect(order).toEqual(['b0', 'a4', 'b1', 'a5']);
  });

  test('keeps no record when all is settled', () => {
    const { bucket, grants } = bucketWith(instant, 8);
    for (const { lease } of grants)
      settle(bucket, { lease, settlement: { kind: 'succeeded', spent: null }, lesson: null }, instant(2_000));
    tick(bucket, { replica, leases: [] }, instant(3_000));
    expect([bucket.tickets.size, bucket.leases.size, bucket.expiries.size, bucket.waitingWeight]).toEqual([
      0, 0, 0, 0,
    ]);
  });

  test('lowers no meter by a response to a call that took nothing from it', () => {
    const bucket = newBucket(instant);
    const options = { limit: 100, windowMs: 1_000_000 };
    const [spent] = admit(bucket, call('a', { ...options, costs: { requests: 50 } }), replica, instant(1_000))
      .effects.grants;
    settle(
      bucket,
      { lease: leaseToken(spent?.lease ?? ''), settlement: { kind: 'succeeded', spent: null }, lesson: null },
      instant(1_100),
    );
    const other = call('b', { ...options, callClass: 'graphql', costs: { cost: 1 } });
    const [free] = admit(bucket, other, replica, instant(9_000)).effects.grants;
    const nothing = {
      meter: 'requests',
      limit: 100,
      windowMs: 1_000_000,
      level: { lowest: 0, highest: 0 },
    } as const;
    const lesson = {
      feedback: { meters: [nothing], throttle: null },
      sentAt: instant(9_000),
      headAt: instant(9_050),
    };
    settle(
      bucket,
      { lease: leaseToken(free?.lease ?? ''), settlement: { kind: 'succeeded', spent: null }, lesson },
      instant(9_050),
    );
    expect(bucket.meters.get('requests')?.level).toBeGreaterThan(48);
  });

  test('sends one call at a time through a lane that its ceiling refused, and all calls through a lane in back-off', () => {
    for (const [because, granted] of [
      ['ceiling_minute', 1],
      ['ceiling_day', 1],
      ['backoff', 4],
    ] as const) {
      const { bucket, grants } = bucketWith(instant, 1);
      const back = { kind: 'returned', sleepMs: 0, because } as const;
      const found = [
        ...settle(bucket, { lease: first(grants).lease, settlement: back, lesson: null }, instant(1_010))
          .grants,
      ];
      for (const name of ['a', 'b', 'c'])
        found.push(...admit(bucket, call(name), replica, instant(1_020)).effects.grants);
      expect(found).toHaveLength(granted);
    }
  });
});
