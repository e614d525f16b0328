/** A replica that has more to send than it can: calls that were granted in a burst leave seconds later. */
import { expect, test } from '@jest/globals';
import { leaseToken } from '../../../src/ids.ts';
import type { Feedback } from '../../../src/call.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import { report } from './metering.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, bucketWith, call, replica } from './scheduling.ts';

const options = { limit: 600, windowMs: 60_000 };
const done = { kind: 'succeeded', spent: null } as const;
const reporting = (used: number): Feedback => ({ meters: [report(600, used)], throttle: null });

atOrigins('a meter', (instant) => {
  test('still counts calls of a burst that have not left yet when it learns from the response to a later call', () => {
    // The burst is granted one second after the origin.
    const { bucket, grants } = bucketWith(instant, 60, options);
    const [first] = grants;
    const late = { feedback: reporting(1), sentAt: instant(3_800), headAt: instant(3_850) };
    settle(bucket, { lease: leaseToken(first?.lease ?? ''), settlement: done, lesson: late }, instant(3_850));

    // Nothing was granted for seconds before this call, whose response says that it was the second to arrive.
    const [quiet] = admit(bucket, call('quiet', options), replica, instant(4_000)).effects.grants;
    const lesson = { feedback: reporting(2), sentAt: instant(4_001), headAt: instant(4_030) };
    settle(bucket, { lease: leaseToken(quiet?.lease ?? ''), settlement: done, lesson }, instant(4_030));

    // 61 calls were granted, and 30 units have drained in three seconds.
    expect(bucket.meters.get('requests')?.level).toBeGreaterThan(30);
  });
});
