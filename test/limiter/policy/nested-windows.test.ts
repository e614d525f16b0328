/** Forecasts under several described windows at once, against when the calls really leave. */
import { expect, test } from '@jest/globals';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { leaseToken, type LeaseToken } from '../../../src/ids.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, call, newBucket, replica, runOn } from './scheduling.ts';

const second = 1_000;

/** The window of the shorter one is the bound of what a forecast may be wrong by. */
const cases = [
  { counts: 'rolling', short: [1, 1], long: [40, 60], calls: 60 },
  { counts: 'fixed', short: [1, 1], long: [40, 60], calls: 60 },
  { counts: 'rolling', short: [5, 2], long: [40, 60], calls: 130 },
  { counts: 'fixed', short: [5, 2], long: [40, 60], calls: 130 },
  { counts: 'rolling', short: [3, 20], long: [6, 60], calls: 20 },
] as const;

atOrigins('the forecast under two windows', (instant) => {
  test.each(cases)('is when the call leaves: $short and $long, $counts', ({ counts, short, long, calls }) => {
    const meter = (
      name: MeterSetting['meter'],
      [limit, seconds]: readonly [number, number],
    ): MeterSetting => ({
      meter: name,
      limit,
      windowMs: seconds * second,
      counts,
    });
    const setting = {
      meters: [meter('requests_burst', short), meter('requests', long)],
      learn: true,
      probe: 0,
    };
    const bucket = newBucket(instant);
    const leases: LeaseToken[] = [];
    const stated = new Map<string, number>();
    for (let at = 0; at < calls; at += 1) {
      const asked = call(`t${at}`, { setting, costs: { requests: 1, requests_burst: 1 } });
      const reply = admit(bucket, asked, replica, instant(second));
      leases.push(...reply.effects.grants.map(({ lease }) => leaseToken(lease)));
      stated.set(`t${at}`, reply.kind === 'queued' ? reply.forecastMs : 0);
    }
    const granted = runOn(bucket, instant(second), instant(600 * second), leases);
    for (const [ticket, at] of granted) {
      const wrongMs = (stated.get(ticket) ?? 0) - (at - instant(second));
      expect({ ticket, isRight: Math.abs(wrongMs) <= short[1] * second * 1.1, wrongMs }).toMatchObject({
        isRight: true,
      });
    }
    expect(granted.size).toBeGreaterThan(calls / 2);
  });
});
