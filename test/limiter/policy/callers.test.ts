import { expect, test } from '@jest/globals';
import { callerKey, laneKey, leaseToken, ticketId } from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { StoredAdmission } from '../../../src/limiter/policy/bucket-events.ts';
import { maxCallers } from '../../../src/limiter/policy/callers.policy.ts';
import { cancel } from '../../../src/limiter/policy/scheduler.policy.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { Effects, Granted } from '../../../src/limiter/policy/pump.policy.ts';
import { jainOf } from '../../support/jain.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { origins } from '../../support/origins.ts';
import { randomFrom, Draw } from '../bucket-history.ts';
import { admit, call, newBucket, replica, runOn, tick } from './scheduling.ts';

/** A place comes free every hundred milliseconds. */
const paced = { limit: 10, windowMs: 1_000 } as const;

const of = (ticket: string, caller: string | null, options: AdmissionOptions = {}): StoredAdmission =>
  call(ticket, { ...paced, ...options, ...(caller === null ? {} : { caller: callerKey(caller) }) });

/** A bucket that is full at one second, with these calls waiting: each the name of a caller and a number. */
function waiting(instant: Instant, calls: readonly (readonly [string, string | null])[]): Bucket {
  const bucket = newBucket(instant);
  for (let at = 0; at < 10; at += 1) admit(bucket, of(`full${at}`, null), replica, instant(1_000));
  for (const [ticket, caller] of calls) admit(bucket, of(ticket, caller), replica, instant(1_000));
  return bucket;
}

/** The tickets in the order in which they leave. */
const orderOf = (bucket: Bucket, instant: Instant): string[] => [
  ...runOn(bucket, instant(1_000), instant(600_000), []).keys(),
];

const many = (caller: string, count: number): [string, string][] =>
  Array.from({ length: count }, (_, at) => [`${caller}${at}`, caller]);

atOrigins('callers of a workspace', (instant) => {
  test('take turns, each with its calls in the order of their arrival', () => {
    const bucket = waiting(instant, [...many('loop', 5), ...many('ann', 2), ...many('bob', 1)]);
    expect(orderOf(bucket, instant)).toEqual([
      'ann0',
      'bob0',
      'loop0',
      'ann1',
      'loop1',
      'loop2',
      'loop3',
      'loop4',
    ]);
  });

  test('are let in where the turn of the first one that is named is within its wait, however many calls name none', () => {
    const bucket = waiting(instant, [
      ['x0', null],
      ['x1', null],
      ['x2', null],
    ]);
    const asked = of('named', 'k', { maxWaitMs: 250 });
    expect(admit(bucket, asked, replica, instant(1_000))).toMatchObject({ kind: 'queued', ahead: 1 });
    expect(orderOf(bucket, instant)).toEqual(['x0', 'named', 'x1', 'x2']);
  });

  test('have urgency among their own calls only', () => {
    const bucket = waiting(instant, [...many('a', 1), ...many('b', 1)]);
    admit(bucket, of('a-urgent', 'a', { urgency: 0 }), replica, instant(1_001));
    expect(orderOf(bucket, instant)).toEqual(['a-urgent', 'b0', 'a0']);
  });

  test('are one where calls name none', () => {
    const bucket = waiting(instant, [
      ['n0', null],
      ['n1', null],
      ['n2', null],
      ...many('a', 2),
      ['n3', null],
    ]);
    expect(orderOf(bucket, instant)).toEqual(['n0', 'a0', 'n1', 'a1', 'n2', 'n3']);
  });

  test('share the time of the meter, not the number of calls', () => {
    const tokens = { meter: 'tokens', limit: 1_000, windowMs: 1_000 } as const;
    const asked = (ticket: string, caller: string, units: number): StoredAdmission => ({
      ...of(ticket, caller, { costs: { tokens: units } }),
      setting: { meters: [tokens], learn: true, probe: 0 },
    });
    const bucket = newBucket(instant);
    admit(bucket, asked('full', 'x', 1_000), replica, instant(1_000));
    for (let at = 0; at < 4; at += 1) admit(bucket, asked(`big${at}`, 'big', 400), replica, instant(1_000));
    for (let at = 0; at < 16; at += 1)
      admit(bucket, asked(`small${at}`, 'small', 100), replica, instant(1_000));
    const first = orderOf(bucket, instant).slice(0, 10);
    expect(first.filter((ticket) => ticket.startsWith('big'))).toHaveLength(2);
  });

  test('keep the place of a call that goes back to its lane', () => {
    const bucket = waiting(instant, [...many('a', 3), ...many('b', 3)]);
    let now = instant(1_000);
    const granted: Granted[] = [];
    while (granted.length === 0) granted.push(...tick(bucket, { replica, leases: [] }, (now += 50)).grants);
    const [first] = granted;
    expect(first?.ticket).toBe('a0');
    const returned = { kind: 'returned', sleepMs: 20, because: 'backoff' } as const;
    const lease = first?.lease ?? leaseToken('none');
    settle(bucket, { lease, settlement: returned, lesson: null }, now);
    expect([...runOn(bucket, now, instant(600_000), []).keys()]).toEqual([
      'a0',
      'b0',
      'a1',
      'b1',
      'a2',
      'b2',
    ]);
  });

  test('have at most one turn before others when many of their calls come back together', () => {
    const bucket = waiting(instant, []);
    const now = instant(20_000);
    const granted = many('a', 5).flatMap(
      ([ticket, caller]) => admit(bucket, of(ticket, caller), replica, now).effects.grants,
    );
    expect(granted).toHaveLength(5);
    const throttled = { kind: 'throttled', closeMs: 100, requeue: true, sleepMs: 0 } as const;
    for (const { lease } of granted) settle(bucket, { lease, settlement: throttled, lesson: null }, now);
    admit(bucket, of('b0', 'b'), replica, now + 50);
    const order = [...runOn(bucket, now + 50, instant(600_000), []).keys()];
    expect(order.indexOf('b0')).toBeLessThanOrEqual(1);
  });

  test('owe no turn when nobody waited beside them', () => {
    const bucket = waiting(instant, many('a', 3));
    expect(orderOf(bucket, instant)).toEqual(['a0', 'a1', 'a2']);
    for (const [ticket, caller] of [...many('b', 2), ...many('a', 2)])
      admit(bucket, of(`${ticket}-later`, caller), replica, instant(600_000));
    expect(bucket.lanes.get(laneKey('l'))?.callers).toBeNull();
  });

  test('do not catch up for the time in which they asked for nothing', () => {
    const bucket = waiting(instant, [...many('a', 60), ...many('b', 1)]);
    runOn(bucket, instant(1_000), instant(4_000), []);
    for (const [ticket] of many('b', 10)) admit(bucket, of(`${ticket}-later`, 'b'), replica, instant(4_000));
    const next = [...runOn(bucket, instant(4_000), instant(600_000), []).keys()].slice(0, 10);
    expect(next.filter((ticket) => ticket.startsWith('b'))).toHaveLength(5);
  });

  test('that are gone leave their places to new ones', () => {
    const bucket = waiting(instant, many('loop', 3_000));
    for (let at = 0; at < maxCallers + 200; at += 1) {
      const now = instant(2_000 + 200 * at);
      admit(bucket, of(`t${at}`, `c_${at}`), replica, now);
      runOn(bucket, now, now + 199, []);
    }
    const lines = bucket.lanes.get(laneKey('l'))?.callers?.lines;
    expect(lines?.size).toBeLessThanOrEqual(maxCallers);
    expect(lines?.has(callerKey('other'))).toBe(false);
  });

  test('nine people and a loop of fifty get equal shares', () => {
    const bucket = newBucket(instant);
    const left = new Map<string, number>();
    const owner = new Map<string, string>();
    let number = 0;
    let now = instant(1_000);
    const enter = (caller: string): void => {
      const ticket = `t${(number += 1)}`;
      owner.set(ticket, caller);
      take(admit(bucket, of(ticket, caller), replica, now).effects);
    };
    const take = ({ grants }: Effects): void => {
      for (const { ticket, lease } of grants) {
        const caller = owner.get(ticket) ?? '';
        left.set(caller, (left.get(caller) ?? 0) + 1);
        take(settle(bucket, { lease, settlement: { kind: 'succeeded', spent: null }, lesson: null }, now));
        enter(caller);
      }
    };
    for (let at = 0; at < 50; at += 1) enter('loop');
    for (let person = 1; person <= 9; person += 1) for (let at = 0; at < 2; at += 1) enter(`p${person}`);
    left.clear();
    for (; now < instant(101_000); now += 100) take(tick(bucket, { replica, leases: [] }, now));
    expect(left.size).toBe(10);
    expect(jainOf([...left.values()])).toBeGreaterThan(0.99);
  });

  test.each(Array.from({ length: 20 }, (_, at) => at + 1))('are told where they stand: seed %i', (seed) => {
    const draw = new Draw(randomFrom(seed));
    const calls = Array.from({ length: 40 }, (_, at): [string, string | null] => [
      `t${at}`,
      draw.one('a', 'b', 'c', 'd', null, 'a', 'a'),
    ]);
    const bucket = waiting(instant, calls);
    // Some turns were taken before.
    const gone = runOn(bucket, instant(1_000), instant(1_000 + 100 * draw.whole(0, 12)), []);
    const told = calls.flatMap(([ticket]) => {
      const expected = gone.has(ticket) ? null : forecast(bucket, ticketId(ticket), instant(2_300));
      return expected === null ? [] : [[ticket, expected.ahead] as const];
    });
    const order = [...runOn(bucket, instant(2_300), instant(600_000), []).keys()];
    for (const [ticket, ahead] of told) expect([ticket, order.indexOf(ticket)]).toEqual([ticket, ahead]);
  });
});

// Takes seconds; it has nothing to do with where a clock begins.
test('callers of a workspace are no more than a thousand and one at a time', () => {
  const instant: Instant = (afterMs) => origins[2].ms + afterMs;
  const bucket = waiting(
    instant,
    Array.from({ length: maxCallers + 50 }, (_, at) => [`t${at}`, `c_${String(at).padStart(4, '0')}`]),
  );
  const lane = bucket.lanes.get(laneKey('l'));
  expect(lane?.callers?.lines.size).toBe(maxCallers + 1);
  // One beyond the bound that leaves is gone from among the further ones.
  admit(bucket, of('gone', 'c_1020'), replica, instant(1_001));
  cancel(bucket, ticketId('gone'), instant(1_001));
  expect(lane?.callers?.lines.get(callerKey('other'))?.line.size).toBe(50);
  // Callers beyond the bound stay in order, also those that become known meanwhile.
  admit(bucket, of('again', 'c_1020'), replica, instant(1_001));
  cancel(bucket, ticketId('t0'), instant(1_002));
  admit(bucket, of('once more', 'c_1020'), replica, instant(1_003));
  const left = orderOf(bucket, instant);
  const own = left.filter((ticket) => ['t1020', 'again', 'once more'].includes(ticket));
  expect(own).toEqual(['t1020', 'again', 'once more']);
  expect(left.indexOf('t1000')).toBeLessThan(left.indexOf('t1001'));
});
