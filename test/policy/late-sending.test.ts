/** A replica that has more to send than it can: what it was granted in a crowd leaves seconds later. */
import { expect, test } from '@jest/globals';
import type { Feedback } from '../../src/call.ts';
import { settle } from '../../src/limiter/policy/scheduler.policy.ts';
import { report } from './metering.ts';
import { atOrigins } from './at-origins.ts';
import { admit, bucketWith, call, replica } from './scheduling.ts';

const wish = { limit: 600, windowMs: 60_000 };
const done = { kind: 'succeeded', spent: null } as const;
const told = (used: number): Feedback => ({ meters: [report(600, used)], throttle: null });

atOrigins('a bucket', (instant) => {
  test('that answered a quiet call still counts the calls of a crowd that have not left yet', () => {
    // The crowd is granted one second after the origin.
    const { bucket, grants } = bucketWith(instant, 60, wish);
    const [first] = grants;
    const late = { feedback: told(1), sentAt: instant(3_800), headAt: instant(3_850) };
    settle(bucket, first?.lease ?? '', done, late, instant(3_850));

    // Nothing was granted for seconds when this one is, and it is answered as the second that arrived.
    const [quiet] = admit(bucket, call('quiet', wish), replica, instant(4_000)).effects.grants;
    const lesson = { feedback: told(2), sentAt: instant(4_001), headAt: instant(4_030) };
    settle(bucket, quiet?.lease ?? '', done, lesson, instant(4_030));

    // 61 were granted, and three seconds have drained 30.
    expect(bucket.meters.get('requests')?.level).toBeGreaterThan(30);
  });
});
