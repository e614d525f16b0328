/** A refused call that keeps its position: what its client is told, and what others leave free until it is back. */
import { expect, test } from '@jest/globals';
import { ceilingKey, leaseToken, type TicketId } from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { reserve, settle } from '../../../src/limiter/policy/scheduler.policy.ts';
import type { Reserved } from '../../../src/limiter/limiter.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, bucketWith, call, replica, runOn } from './scheduling.ts';

const lastsMs = 10_000;
/** Behind those that were admitted at the same time, before those that are admitted a millisecond later. */
const enteringMs = 499.5;
/** Four at once, and then one a second. */
const pace: AdmissionOptions = { limit: 4, windowMs: 4_000, maxWaitMs: 0 };
const patient: AdmissionOptions = { ...pace, maxWaitMs: 600_000 };

function keepFor(bucket: Bucket, ticket: string, now: number, options: AdmissionOptions = pace): Reserved {
  const reply = reserve(
    bucket,
    {
      admission: { ...call(ticket, options), position: { kind: 'arrival', at: now - enteringMs } },
      reserving: { ceiling: ceilingKey('c'), waitMs: 0, lastsMs, maxReserved: 1_000, begins: true },
    },
    now,
  );
  if (reply === null) throw new Error('nothing was kept');
  return reply;
}

/** The client of the ticket comes back, as a call of this name. */
const comeBack = (
  bucket: Bucket,
  id: TicketId,
  { as, at, ...more }: { as: string; at: number } & AdmissionOptions,
) => admit(bucket, { ...call(as, { ...pace, ...more }), reservation: id }, replica, at);

atOrigins('a reservation', (instant) => {
  const full = (): Bucket => bucketWith(instant, 4, pace).bucket;

  test('has a time of its own, also where several calls are refused together', () => {
    const bucket = full();
    const told = ['a', 'b', 'c'].map((each) => keepFor(bucket, each, instant(1_000)).waitMs);
    expect(told.map((ms) => Math.floor(ms / 1_000))).toEqual([1, 2, 3]);
  });

  test('lets its client leave at once from the told time on, and before that tells it the time left', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const early = comeBack(bucket, id, { as: 'a2', at: instant(1_000) + waitMs / 2 });
    expect(early).toMatchObject({ kind: 'refused', reason: 'wait_too_long' });
    expect(early.kind === 'refused' && early.retryInMs).toBeCloseTo(waitMs / 2, 0);
    expect(comeBack(bucket, id, { as: 'a3', at: instant(1_000) + waitMs }).kind).toBe('granted');
  });

  test('is left free by a call that came later, of its own lane or another one, for as long as it is kept', () => {
    for (const lane of ['l', 'another']) {
      const bucket = full();
      const { waitMs } = keepFor(bucket, 'a', instant(1_000));
      admit(bucket, call('later', { ...patient, lane }), replica, instant(1_001));
      const from = instant(1_000) + waitMs;
      // A second place has drained by the second after it: that one is free.
      const left = runOn(bucket, instant(1_002), instant(30_000), []).get('later') ?? Infinity;
      expect(left).toBeGreaterThan(from + 900);
      expect(left).toBeLessThan(from + 1_200);
    }
  });

  test('costs those behind it nothing when it is not used, but the room of one call while it is kept', () => {
    const bucket = full();
    const { waitMs } = keepFor(bucket, 'a', instant(1_000));
    for (let n = 0; n < 20; n += 1) admit(bucket, call(`t${n}`, patient), replica, instant(1_001));
    const left = [...runOn(bucket, instant(1_002), instant(60_000), []).values()];
    const from = instant(1_000) + waitMs;
    // One a second behind it, and the one that it held back as soon as it ends.
    expect(left.filter((at) => at <= from + lastsMs)).toHaveLength(10);
    expect(left.filter((at) => at <= from + lastsMs + 200)).toHaveLength(11);
  });

  test('is of no use later, twice, in another lane, or for a larger call', () => {
    const bucket = full();
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const from = instant(1_000) + waitMs;
    admit(bucket, call('later', patient), replica, instant(1_001));
    const waits = { at: from, maxWaitMs: 0 };
    expect(comeBack(bucket, id, { as: 'x', lane: 'another', ...waits }).kind).toBe('refused');
    expect(comeBack(bucket, id, { as: 'y', costs: { requests: 2 }, ...waits }).kind).toBe('refused');
    expect(comeBack(bucket, id, { as: 'z', ...waits }).kind).toBe('granted');
    expect(comeBack(bucket, id, { as: 'zz', ...waits }).kind).toBe('refused');

    const other = full();
    const late = keepFor(other, 'a', instant(1_000));
    for (let n = 0; n < 20; n += 1) admit(other, call(`t${n}`, patient), replica, instant(1_001));
    const until = instant(1_000) + late.waitMs + lastsMs;
    runOn(other, instant(1_002), until, []);
    expect(comeBack(other, late.id, { as: 'z', at: until + 1 }).kind).toBe('refused');
  });

  test('has a new time where the bucket has closed meanwhile, and is kept', () => {
    const { bucket, grants } = bucketWith(instant, 4, pace);
    const { id, waitMs } = keepFor(bucket, 'a', instant(1_000));
    const lease = leaseToken(grants[0]?.lease ?? '');
    const closes = { kind: 'throttled', closeMs: 40_000, requeue: false, sleepMs: 0 } as const;
    settle(bucket, { lease, settlement: closes, lesson: null }, instant(1_500));
    const from = instant(1_000) + waitMs;
    expect(comeBack(bucket, id, { as: 'a2', at: from }).kind).toBe('refused');
    const again = reserve(
      bucket,
      {
        admission: { ...call('a2', pace), reservation: id, position: { kind: 'arrival', at: from } },
        reserving: { ceiling: ceilingKey('c'), waitMs: 0, lastsMs, maxReserved: 1_000, begins: false },
      },
      from,
    );
    expect(again?.id).toBe(id);
    expect(from + (again?.waitMs ?? 0)).toBeGreaterThanOrEqual(instant(41_500));
    expect(comeBack(bucket, id, { as: 'a3', at: from + (again?.waitMs ?? 0) }).kind).toBe('granted');
  });

  test('is counted by the forecasts of calls that come later', () => {
    const bucket = full();
    for (const each of ['a', 'b', 'c']) keepFor(bucket, each, instant(1_000));
    const reply = admit(bucket, call('later', patient), replica, instant(1_001));
    expect(reply.kind === 'queued' && Math.round(reply.forecastMs / 1_000)).toBe(4);
    expect(reply.kind === 'queued' && reply.ahead).toBe(3);
  });
});
