import { describe, expect, test } from '@jest/globals';
import { unauthenticated } from '../../src/auth/authenticate.ts';
import { FailedAttempts } from '../../src/auth/failed-attempts.ts';
import { refusalResponse } from '../../src/ingress/problem.ts';

describe('failed authentications', () => {
  test('get a plain 401 at first, then one that says that there were too many', async () => {
    const attempts = new FailedAttempts({ allowed: 3, windowSeconds: 60 });
    const details = [];
    for (let n = 0; n < 5; n += 1) {
      const refusal = await attempts.refusal('192.0.2.1');
      expect(refusal.code).toBe('unauthenticated');
      details.push(refusal.details.detail);
    }
    expect(details.slice(0, 3)).toEqual(Array.from({ length: 3 }, () => unauthenticated().details.detail));
    for (const detail of details.slice(3)) expect(detail).toContain('Too many');
  });

  test('get no time for a retry: a valid key passes at once, an invalid one never', async () => {
    const attempts = new FailedAttempts({ allowed: 1 });
    await attempts.refusal('192.0.2.1');
    const { code, details } = await attempts.refusal('192.0.2.1');
    expect(details.retryInMs).toBeUndefined();
    const { status, fields } = refusalResponse({ code, details, requestId: 'f'.repeat(32) });
    expect(status).toBe(401);
    expect(fields).toContain('WWW-Authenticate');
    expect(fields.filter((field) => /^retry-after/i.test(field))).toEqual([]);
  });

  test('from one source do not count for another', async () => {
    const attempts = new FailedAttempts({ allowed: 1 });
    await attempts.refusal('192.0.2.1');
    // One of many others may share the counter by chance, not most of them.
    const others = await Promise.all(
      Array.from({ length: 20 }, (_, n) => attempts.refusal(`2001:db8::${n}`)),
    );
    expect(
      others.filter(({ details }) => details.detail === unauthenticated().details.detail).length,
    ).toBeGreaterThan(15);
    expect((await attempts.refusal('192.0.2.1')).details.detail).toContain('Too many');
  });
});
