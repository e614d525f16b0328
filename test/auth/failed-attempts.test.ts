import { describe, expect, test } from '@jest/globals';
import { FailedAttempts } from '../../src/auth/failed-attempts.ts';

describe('failed authentications', () => {
  test('get a plain 401 at first, then one with the time to try again', async () => {
    const attempts = new FailedAttempts({ allowed: 3, windowSeconds: 60 });
    const details = [];
    for (let n = 0; n < 5; n += 1) {
      const refusal = await attempts.refusal('192.0.2.1');
      expect(refusal.code).toBe('unauthenticated');
      details.push(refusal.details.retryInMs);
    }
    expect(details.slice(0, 3)).toEqual([undefined, undefined, undefined]);
    for (const retryInMs of details.slice(3)) {
      expect(retryInMs).toBeGreaterThan(0);
      expect(retryInMs).toBeLessThanOrEqual(60_000);
    }
  });

  test('of one source do not count for another', async () => {
    const attempts = new FailedAttempts({ allowed: 1 });
    await attempts.refusal('192.0.2.1');
    // One of many others may share the counter by chance, not most of them.
    const others = await Promise.all(
      Array.from({ length: 20 }, (_, n) => attempts.refusal(`2001:db8::${n}`)),
    );
    expect(others.filter(({ details }) => details.retryInMs === undefined).length).toBeGreaterThan(15);
    expect((await attempts.refusal('192.0.2.1')).details.retryInMs).toBeDefined();
  });
});
