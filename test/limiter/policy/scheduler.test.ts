/** The transitions of a bucket: who leaves when, what a refusal says, and that what is said twice happens once. */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Costs } from '../../../src/call.ts';
import { replicaId } from '../../../src/ids.ts';
import { drain } from '../../../src/limiter/policy/meter.policy.ts';
import {
  replicaLifeMs,
  maxArrivalAgoMs,
  maxArrivalAheadMs,
} from '../../../src/limiter/policy/scheduler.policy.ts';
import { SortedNames } from '../../../src/limiter/policy/sorted.policy.ts';
import { serviceCost } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { report } from './metering.ts';
import { call, done, dropped, names, TestBucket, throttled } from './scheduling.ts';

const killed = replicaId('killed');
const wide = { limit: 100 };
const serial = { limit: 100, maxInFlight: 1 };

/** The whole state as text. */
const stateOf = ({ bucket }: TestBucket): string =>
  JSON.stringify(bucket, (_, value: unknown) => {
    if (value instanceof SortedNames) return value.names().map((name) => [name, value.scoreOf(name)]);
    return value instanceof Map ? [...value] : value;
  });

atOrigins('a refusal', (instant) => {
  test('leaves the state of the bucket unchanged', () => {
    const ms = fc.integer({ min: 0, max: 9_000 });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 30 }), ms, fc.boolean(), (calls, laterMs, full) => {
        const [one, other] = [new TestBucket(instant), new TestBucket(instant)];
        for (const line of [one, other]) line.enter(names(calls));
        const reply = one
          .at(1_000 + laterMs)
          .admit('x', full ? { maxQueued: 0 } : { maxWaitMs: -1, lane: 'new' });
        other.at(1_000 + laterMs).pump();
        for (const line of [one, other]) drain(line.meter(), line.now);
        if (reply.kind === 'refused') expect(stateOf(one)).toBe(stateOf(other));
      }),
    );
  });
});

atOrigins('a repeated operation', (instant) => {
  test('enters a ticket once, cancels a waiting one once and a granted one never, and settles a lease once', () => {
    const line = new TestBucket(instant);
    line.enter(names(12));
    expect([line.admit('t11').kind, line.admit('t0').kind]).toEqual(['queued', 'granted']);
    for (const ticket of ['t11', 't11', 't0']) line.cancel(ticket);
    expect(line.bucket.waiting).toBe(1);
    expect(line.bucket.leases.has(line.leaseOf('t0'))).toBe(true);
    line.settle('t0', dropped);
    const after = stateOf(line);
    line.settle('t0', dropped);
    line.settle('t0', throttled(9_000, { requeue: true }));
    line.slotTaken('t0', { slots: 0, nextSlotMs: 9_000 });
    expect(stateOf(line)).toBe(after);
  });
});

atOrigins('a lane', (instant) => {
  test('grants by arrival, whichever call was entered first', () => {
    const line = new TestBucket(instant, serial);
    line.enter(['t0', 't1']);
    for (line.ms = 14_000; line.ms < 700_000; line.ms += 14_000) line.tick();
    line.tick();
    const enter = (ticket: string, agoMs: number, urgency = 3) =>
      line.admitAs(call(ticket, { ...serial, urgency, arrivedAt: line.now - agoMs }));
    expect(enter('z', 0)).toMatchObject({ kind: 'queued', ahead: 1 });
    expect(enter('late', 200)).toMatchObject({ ahead: 1 });
    expect(enter('middle', 100)).toMatchObject({ ahead: 2 });
    expect(enter('urgent', 0, 1)).toMatchObject({ ahead: 0 });
    // Whatever arrival is claimed, a call goes neither before calls that have waited for long nor behind later ones.
    expect(enter('long', maxArrivalAgoMs)).toMatchObject({ ahead: 2 });
    expect(enter('boast', 1e9)).toMatchObject({ ahead: 2 });
    expect(enter('future', -1e9)).toMatchObject({ ahead: 7 });
    line.ms += maxArrivalAheadMs + 1;
    expect(enter('later', 0)).toMatchObject({ ahead: 8 });
    const order: string[] = [];
    for (let [next] = line.settle('t0'); next !== undefined; [next] = line.settle(next)) order.push(next);
    expect(order).toEqual(['urgent', 't1', 'boast', 'long', 'late', 'middle', 'z', 'future', 'later']);
  });
});

atOrigins('a replica that is not heard of any more', (instant) => {
  test('is forgotten, also one of which no call waits', () => {
    const line = new TestBucket(instant);
    line.bucket.closedUntil = instant(60_000);
    line.bucket.replicas.set(killed, line.now);
    line.enter(['own']);
    line.at(1_001 + replicaLifeMs).tick();
    expect(line.nextAt).toBe(instant(60_000));
    expect(line.bucket.replicas.scoreOf(killed)).toBeNull();
  });

  test.each([
    [replicaLifeMs, 'goes', 'killed'],
    [replicaLifeMs + 1, 'does not go', 'own'],
  ])('a call of a replica that is silent for %s ms %s before those of others', (silentMs, _goes, next) => {
    const line = new TestBucket(instant, serial);
    line.enter(['under way']);
    line.enter(['killed'], {}, killed);
    line.at(1_001).enter(['own']);
    // Without a tick in between, which would forget the tickets of dead replicas.
    expect(line.at(1_000 + silentMs).settle('under way')).toEqual([next]);
  });
});

atOrigins('a bucket', (instant) => {
  test('sends one probe until a response comes, and twice as many each time none does', () => {
    const line = new TestBucket(instant, { ...wide, probe: 1 });
    expect(line.enter(['a', 'b', 'c', 'd', 'e'])).toEqual(['a']);
    expect(line.at(1_249).pump()).toEqual([]);
    expect(line.at(1_250).pump()).toEqual(['b']);
    expect(line.at(1_300).settle('a')).toEqual(['c', 'd', 'e']);
  });

  test('makes a workspace that joins wait one round at most, however many grants others return', () => {
    const line = new TestBucket(instant, { limit: 4, windowMs: 40_000 });
    line.enter(names(7, 'a'), { lane: 'a' });
    line.enter(names(2, 'b'), { lane: 'b' });
    expect(names(4, 'a').flatMap((id) => line.settle(id, dropped))).toEqual(['b0', 'a4', 'b1', 'a5']);
  });

  test('lowers no meter by a response to a call that took nothing from it', () => {
    const line = new TestBucket(instant, { limit: 100, windowMs: 1_000_000 });
    line.enter(['a'], { costs: { requests: 50 } });
    line.at(1_100).settle('a');
    line.at(9_000).enter(['b'], { callClass: 'graphql', costs: { cost: 1 } });
    line.at(9_050).settle('b', done, line.lesson({ meters: [report(100, 0, 1_000_000)] }, 9_000));
    expect(line.meter().level).toBeGreaterThan(48);
  });
});

atOrigins('the service cost of a call', (instant) => {
  const windowMs = 60_000;
  const meters = [
    { meter: 'requests', limit: 500, windowMs },
    { meter: 'tokens', limit: 30_000, windowMs },
  ] as const;
  const line = new TestBucket(instant, { meters });
  line.enter(['a'], { costs: { requests: 1, tokens: 1, requests_day: 1 } });
  Object.assign(line.meter('requests_day'), { limit: 10, windowMs: 86_400_000 });

  test.each<[what: string, costs: Costs, ms: number]>([
    ['a plain call', { requests: 1 }, 120],
    ['a call with few tokens', { requests: 1, tokens: 10 }, 120],
    ['a call with many tokens', { requests: 1, tokens: 15_000 }, 30_000],
    ['a call of more than the limit', { requests: 1, tokens: 1e15 }, windowMs],
    ['a call of a daily meter', { requests: 1, requests_day: 1 }, 120],
    ['a call of a meter whose limit is unknown', { images: 7 }, 1],
    ['a call that costs nothing', {}, 1],
  ])('is the time for which its most used meter is busy: %s', (_what, costs, ms) => {
    expect(serviceCost(line.bucket, costs)).toBe(ms);
  });
});
