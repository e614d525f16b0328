/** For whom a refusal of a moment ago holds, and what ends it. */
import { beforeEach, describe, expect, test } from '@jest/globals';
import { RecentRefusals, rememberedMs } from '../../src/admission/recent-refusals.ts';
import type { AdmissionRequest } from '../../src/admission/ticket.ts';
import { Refusal, type RefusalCode } from '../../src/errors.ts';
import { bucketKey, leaseToken, laneKey, ticketId } from '../../src/ids.ts';
import type { Grant, Limiter } from '../../src/limiter/limiter.ts';
import { createEmbeddedLimiter } from '../../src/limiter/embedded/limiter.ts';
import { admission } from '../support/admission.ts';
import { callOf, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

let clock: FakeClock;
let recent: RecentRefusals;
beforeEach(() => {
  clock = new FakeClock();
  recent = new RecentRefusals(clock);
});

const requestOf = (options: CallOptions = {}): AdmissionRequest =>
  callOf(clock, 't', { maxWaitMs: 2_000, costs: { requests: 1, tokens: 100 }, ...options })[0];
const state = { limit: 60, remaining: 0, nextSlotMs: 9_000 };

/** A call was refused `agoMs` ago, with 10 s to wait. */
async function refuse(agoMs = 0, code: RefusalCode = 'wait_too_long'): Promise<void> {
  const refusal = new Refusal(code, { retryInMs: 10_000, heldBy: 'ceiling_minute' });
  recent.note(requestOf(), refusal, Promise.resolve(state));
  clock.outside(agoMs, () => {});
  await clock.run(agoMs);
}

test('a call like the refused one is refused with the time that is left and the ceiling’s state of the first refusal', async () => {
  await refuse(200);
  const refusal = recent.rememberedRefusal(requestOf());
  expect(refusal).toMatchObject({
    code: 'wait_too_long',
    details: { retryInMs: 9_800, heldBy: 'ceiling_minute' },
  });
  expect(await recent.ceilingOf(refusal)).toEqual({ ...state, nextSlotMs: 8_800 });
});

test('refusals for a full queue and a used-up day are repeated from memory, too', async () => {
  await refuse(0, 'queue_full');
  expect(recent.rememberedRefusal(requestOf())?.code).toBe('queue_full');
  recent.note(
    requestOf(),
    new Refusal('day_quota_exhausted', { retryInMs: 3_600_000, heldBy: 'ceiling_day' }),
    Promise.resolve(null),
  );
  expect(recent.rememberedRefusal(requestOf())).toMatchObject({ code: 'day_quota_exhausted' });
});

test.each<[string, CallOptions]>([
  ['may wait as long as it takes', { maxWaitMs: 10_000 }],
  ['is more urgent', { urgency: 2 }],
  ['costs less', { costs: { requests: 1, tokens: 99 } }],
  ['came before it', { arrivedAt: -1 }],
  ['takes from other meters', { callClass: 'images' }],
  ['is another document', { document: 'd' }],
  ['has another ceiling', { perMinute: 90 }],
  ['is of another lane', { lane: 'other' }],
  ['is of another bucket', { bucket: 'other' }],
])('a call that %s is not refused by a remembered refusal', async (_, options) => {
  await refuse();
  expect(recent.rememberedRefusal(requestOf())).not.toBeNull();
  expect(recent.rememberedRefusal(requestOf(options))).toBeNull();
});

test('a remembered refusal holds for a moment only', async () => {
  await refuse(rememberedMs);
  expect(recent.rememberedRefusal(requestOf())).toBeNull();
});

test.each<RefusalCode>(['limiter_unavailable', 'overloaded', 'unauthenticated'])(
  'a refusal with %s says nothing of the next call',
  async (code) => {
    await refuse(0, code);
    expect(recent.rememberedRefusal(requestOf())).toBeNull();
  },
);

describe('a remembered refusal is forgotten when', () => {
  const bucket = bucketKey('bucket');
  const grant: Grant = {
    ticket: ticketId('other'),
    bucket,
    lane: laneKey('lane'),
    lease: leaseToken('x'),
    expiresAt: 1_000,
  };
  test.each<[string, (limiter: Limiter) => Promise<void>]>([
    ['a call of its bucket ends', (limiter) => limiter.settle(grant, { kind: 'dropped' }, null)],
    ['a waiting call of its bucket leaves', (limiter) => limiter.cancel(bucket, ticketId('other'))],
    ['its bucket is opened', (limiter) => limiter.open(bucket, 0)],
    ['a call moves out of its bucket', (limiter) => limiter.move(bucket, admission('m', { bucket: 'home' }))],
  ])('%s', async (_, happen) => {
    const limiter = recent.watchLimiter(
      createEmbeddedLimiter(clock, { onGrant: () => {}, onClosed: () => {} }),
    );
    await refuse();
    await happen(limiter);
    expect(recent.rememberedRefusal(requestOf())).toBeNull();
    await limiter.close();
  });

  test('settings change', async () => {
    await refuse();
    recent.forgetAll();
    expect(recent.rememberedRefusal(requestOf())).toBeNull();
  });
});
