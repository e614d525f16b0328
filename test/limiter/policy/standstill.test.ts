/** A line whose bucket or lane stands still begins to leave only afterwards: its forecasts say so. */
import { expect, test } from '@jest/globals';
import { leaseToken, ticketId } from '../../../src/ids.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, call, newBucket, replica, runOn } from './scheduling.ts';

/** Three at once, and then one a second. */
const pace: AdmissionOptions = { limit: 3, windowMs: 3_000, leaseMs: 40_000 };
const stillMs = 40_000;
const calls = 10;
const afterwardsMs = (calls - 3) * 1_000;

interface Case {
  readonly why: string;
  readonly ending: Settlement;
  readonly maxInFlight: number | null;
  readonly heldBy: string;
}

const cases: readonly Case[] = [
  {
    why: 'a closed bucket',
    ending: { kind: 'throttled', closeMs: stillMs, requeue: false, sleepMs: 0 },
    maxInFlight: null,
    heldBy: 'closed',
  },
  {
    why: 'a lane that backs off',
    ending: { kind: 'returned', sleepMs: stillMs, because: 'backoff' },
    maxInFlight: null,
    heldBy: 'closed',
  },
  {
    why: 'a lane whose only slot a call of unknown fate keeps',
    ending: { kind: 'unknown' },
    maxInFlight: 1,
    heldBy: 'serialized',
  },
];

atOrigins('a line behind a standstill', (instant) => {
  test.each(cases)('leaves at the pace of its meter afterwards: $why', ({ ending, maxInFlight, heldBy }) => {
    const options = { ...pace, maxInFlight };
    const bucket = newBucket(instant);
    const [first] = admit(bucket, call('first', options), replica, instant(1_000)).effects.grants;
    const lease = leaseToken(first?.lease ?? '');
    settle(bucket, { lease, settlement: ending, lesson: null }, instant(1_000));
    const line = Array.from({ length: calls }, (_, at) => `t${at}`);
    for (const ticket of line) admit(bucket, call(ticket, options), replica, instant(1_000));

    const behind = ending.kind === 'returned' ? 1_000 : 0;
    const last = forecast(bucket, ticketId(`t${calls - 1}`), instant(1_000));
    expect(last?.heldBy).toBe(heldBy);
    expect(last?.waitMs).toBeGreaterThan(stillMs + afterwardsMs + behind - 1_000);
    expect(last?.waitMs).toBeLessThan(stillMs + afterwardsMs + behind + 1_500);
    if (maxInFlight !== null) return;
    const leftAt = runOn(bucket, instant(1_000), instant(90_000), []).get(`t${calls - 1}`) ?? instant(0);
    expect(Math.abs(leftAt - instant(1_000) - (last?.waitMs ?? 0))).toBeLessThan(2_000);
  });
});
