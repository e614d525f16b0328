/** Which calls go first while it is unknown whether the upstream accepts calls. */
import { expect, test } from '@jest/globals';
import { createBucket, type Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { pilotCrowd, pilotMs, silenceMs } from '../../../src/limiter/policy/in-flight.policy.ts';
import { admit } from '../../../src/limiter/policy/admit.policy.ts';
import { cancel } from '../../../src/limiter/policy/scheduler.policy.ts';
import { type Effects, pump } from '../../../src/limiter/policy/pump.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import { laneKey, leaseToken, ticketId, type LeaseToken } from '../../../src/ids.ts';
import { admission } from '../../support/admission.ts';
import { replica } from './scheduling.ts';

const options = { limit: 1_000, windowMs: 60_000, probe: 0 };
const crowd = pilotCrowd + 1;

const succeeded = { kind: 'succeeded', spent: null } as const;
const leaseOf = ({ grants }: Pick<Effects, 'grants'>): LeaseToken => leaseToken(grants[0]?.lease ?? '');

/** A bucket that granted one call at `at`, and whose lane sleeps since then with a crowd in it. */
function asleepSince(at: number, sleepMs: number, waiting = crowd): Bucket {
  const bucket = createBucket(0, at);
  const first = leaseOf(admit(bucket, { admission: admission('first', options), replica }, at).effects);
  const because = { kind: 'returned', sleepMs, because: 'ceiling_minute' } as const;
  settle(bucket, { lease: first, settlement: succeeded, lesson: null }, at);
  const asleep = leaseOf(admit(bucket, { admission: admission('t0', options), replica }, at).effects);
  settle(bucket, { lease: asleep, settlement: because, lesson: null }, at);
  for (let n = 1; n < waiting; n += 1) admit(bucket, { admission: admission(`t${n}`, options), replica }, at);
  const lane = bucket.lanes.get(laneKey('lane'));
  if (lane !== undefined) lane.slots = null;
  bucket.replicas.set(replica, at + sleepMs);
  return bucket;
}

test('after a silence one call, the pilot, goes ahead of many, and its response lets the others go', () => {
  const bucket = asleepSince(0, silenceMs);
  const { grants, nextAt } = pump(bucket, silenceMs);
  expect(grants.map(({ ticket }) => ticket)).toEqual(['t0']);
  expect(nextAt).toBe(silenceMs + pilotMs);
  expect(pump(bucket, silenceMs + 1).grants).toEqual([]);
  const answered = settle(
    bucket,
    { lease: leaseOf({ grants }), settlement: succeeded, lesson: null },
    silenceMs + 20,
  );
  expect(answered.grants).toHaveLength(crowd - 1);
});

test('a refused pilot closes the bucket for all calls', () => {
  const bucket = asleepSince(0, silenceMs);
  const { grants } = pump(bucket, silenceMs);
  const refused = { kind: 'throttled', closeMs: 5_000, requeue: true, sleepMs: 0 } as const;
  const now = silenceMs + 20;
  expect(settle(bucket, { lease: leaseOf({ grants }), settlement: refused, lesson: null }, now)).toEqual({
    grants: [],
    nextAt: now + 5_000,
  });
});

test('a slow pilot delays the other calls for a short time only', () => {
  const bucket = asleepSince(0, silenceMs);
  pump(bucket, silenceMs);
  expect(pump(bucket, silenceMs + pilotMs).grants).toHaveLength(crowd - 1);
});

test('a pilot that the ceiling sends back does not count as one', () => {
  const bucket = asleepSince(0, silenceMs);
  const { grants } = pump(bucket, silenceMs);
  const because = { kind: 'returned', sleepMs: 30, because: 'ceiling_minute' } as const;
  settle(bucket, { lease: leaseOf({ grants }), settlement: because, lesson: null }, silenceMs + 1);
  const lane = bucket.lanes.get(laneKey('lane'));
  if (lane !== undefined) lane.slots = null;
  expect(pump(bucket, silenceMs + 31).grants.map(({ ticket }) => ticket)).toEqual(['t0']);
});

test('few calls go without a pilot, and calls that have left hold no others', () => {
  expect(pump(asleepSince(0, silenceMs, pilotCrowd), silenceMs).grants).toHaveLength(pilotCrowd);
  const bucket = asleepSince(0, silenceMs);
  pump(bucket, silenceMs);
  expect(cancel(bucket, ticketId('t1'), silenceMs + 1).grants).toHaveLength(pilotCrowd - 1);
});

test('calls that waited for less than a silence go at once', () => {
  expect(pump(asleepSince(0, silenceMs - 1), silenceMs - 1).grants).toHaveLength(crowd);
});
