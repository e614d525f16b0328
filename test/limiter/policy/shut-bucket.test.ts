/** A bucket that was closed goes on at the time that the upstream named, and at the pace of its meter. */
import { expect, test } from '@jest/globals';
import { leaseToken } from '../../../src/ids.ts';
import type { Feedback } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { TimedLesson } from '../../../src/limiter/policy/lessons.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, call, newBucket, replica, tick } from './scheduling.ts';

const limit = 6_000;
const windowMs = 60_000;

const feedbackOf = (status: number, fields: Record<string, string>, body: string | null): Feedback =>
  learnFrom('language-model', {
    status,
    fields: new Map(Object.entries({ 'x-ratelimit-limit-requests': String(limit), ...fields })),
    body,
    callClass: 'default',
    nowMs: 0,
  });

const used = (units: number): Feedback =>
  feedbackOf(
    200,
    {
      'x-ratelimit-remaining-requests': String(limit - units),
      'x-ratelimit-reset-requests': `${units * 10}ms`,
    },
    null,
  );

/** A refusal for a full bucket. */
const refusal = feedbackOf(
  429,
  {
    'x-ratelimit-remaining-requests': '0',
    'x-ratelimit-reset-requests': '1m9.8s',
    'retry-after-ms': '9829',
  },
  '{"error":{"type":"requests","code":"rate_limit_exceeded","message":""}}',
);

atOrigins('a closed bucket', (instant) => {
  const from = instant(0);
  const bucket = newBucket(instant);
  const options = { limit, windowMs };
  const lesson = (feedback: Feedback, sentAt: number, headAt: number): TimedLesson => ({
    feedback,
    sentAt,
    headAt,
  });

  test('with calls in flight opens at the stated time, after 9.829 s, and goes on at full pace', () => {
    for (let at = 0; at < 120; at += 1) {
      const now = from + at;
      const [grant] = admit(bucket, call(`early${at}`, options), replica, now).effects.grants;
      settle(
        bucket,
        {
          lease: leaseToken(grant?.lease ?? ''),
          settlement: { kind: 'succeeded', spent: null },
          lesson: lesson(used(1), now, now),
        },
        now,
      );
    }
    const sentAt = from + 60_100;
    const leases = Array.from(
      { length: 8 },
      (_, at) => admit(bucket, call(`refused${at}`, options), replica, sentAt).effects.grants[0]?.lease ?? '',
    );
    const refusedAt = sentAt + 20;
    for (const [at, lease] of leases.entries()) {
      const head = refusedAt + at / 10;
      const again = { kind: 'throttled', closeMs: 9_829, requeue: true, sleepMs: 0 } as const;
      settle(
        bucket,
        { lease: leaseToken(lease), settlement: again, lesson: lesson(refusal, sentAt, head) },
        head,
      );
    }
    for (let at = 0; at < 230; at += 1) admit(bucket, call(`late${at}`, options), replica, refusedAt + 100);

    const opensAt = refusedAt + 0.7 + 9_829;
    const granted: number[] = [];
    for (let now = refusedAt + 100; now < opensAt + 5_000; now += 1) {
      for (const _grant of tick(bucket, { replica, leases: [] }, now).grants) granted.push(now - opensAt);
    }
    // Each of the refused calls would have room at that time: the bucket is full except for one unit.
    expect(granted[0]).toBeGreaterThanOrEqual(-1);
    expect(granted[0]).toBeLessThanOrEqual(50);
    expect(granted[119]).toBeLessThanOrEqual(1_190 + 50);
    expect(granted).toHaveLength(238);
  });
});
