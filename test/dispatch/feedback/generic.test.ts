import { describe, expect, test } from '@jest/globals';
import type { Feedback } from '../../../src/call.ts';
import { quotasOf } from '../../../src/dispatch/feedback/ietf.policy.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const now = Date.UTC(2026, 0, 1);
const learn = (status: number, fields: Record<string, string>): Feedback =>
  learnFrom('generic', {
    status,
    fields: new Map(Object.entries(fields)),
    body: null,
    callClass: 'default',
    nowMs: now,
  });

describe('a refusal of a generic upstream', () => {
  test('waits, for 429, as stated, and states no wait without Retry-After', () => {
    expect(learn(429, { 'retry-after': '3' }).throttle).toEqual({
      kind: 'rate',
      waitMs: 3000,
      meter: 'requests',
    });
    expect(learn(429, {}).throttle).toEqual({ kind: 'rate', waitMs: null, meter: 'requests' });
  });

  test('is overload for 503', () => {
    expect(learn(503, { 'retry-after': '3' }).throttle).toEqual({ kind: 'overload', waitMs: 3000 });
  });

  test.each([200, 403, 500])('is not seen in status %d', (status) => {
    expect(learn(status, { 'retry-after': '3' }).throttle).toBeNull();
  });

  test('waits, for 429, until an exhausted window ends unless Retry-After says otherwise', () => {
    const fields = { 'ratelimit-policy': '"a";q=10;w=60', ratelimit: '"a";r=0;t=12' };
    expect(learn(429, fields).throttle?.waitMs).toBe(12_000);
    expect(learn(429, { ...fields, 'retry-after': '20' }).throttle?.waitMs).toBe(20_000);
    expect(learn(429, { ...fields, ratelimit: '"a";r=5;t=12' }).throttle?.waitMs).toBeNull();
  });
});

describe('rate limit fields', () => {
  test('make one meter of each policy by its window', () => {
    const fields = {
      'ratelimit-policy': '"burst";q=10;w=10, "daily";q=5000;w=86400',
      ratelimit: '"burst";r=8;t=1, "daily";r=4998;t=69076',
    };
    expect(learn(200, fields).meters).toEqual([
      { meter: 'requests', limit: 10, windowMs: 10_000, level: { lowest: 1, highest: 2 } },
      { meter: 'requests_day', limit: 5000, windowMs: 86_400_000, level: { lowest: 1, highest: 2 } },
    ]);
  });

  test('are no request limit when they count another unit', () => {
    const fields = { 'ratelimit-policy': '"a";q=10;w=10;qu="content-bytes"', ratelimit: '"a";r=8' };
    expect(learn(200, fields).meters).toEqual([]);
  });

  test.each(['"a;q=1', ';;;', '"a";q=x;w=-1', ',,,', '"a"="b"', 'a'.repeat(5000)])(
    'are ignored when they say %.20p',
    (value) => {
      expect(learn(200, { 'ratelimit-policy': value, ratelimit: value }).meters).toEqual([]);
    },
  );

  test('may have separators inside quoted names', () => {
    expect(quotasOf(new Map([['ratelimit', '"a;b, c\\"d";r=4']]))).toMatchObject([{ r: 4 }]);
  });

  test('are read, in the older form of three fields, with the window that the policy states', () => {
    const fields = {
      'ratelimit-limit': '100, 100;w=60',
      'ratelimit-remaining': '90',
      'ratelimit-reset': '30',
    };
    expect(learn(200, fields).meters).toEqual([
      { meter: 'requests', limit: 100, windowMs: 60_000, level: { lowest: 9, highest: 10 } },
    ]);
  });

  test('may have their window behind each number', () => {
    const fields = { 'ratelimit-limit': '100;w=21600', 'ratelimit-remaining': '76;w=21600' };
    expect(learn(200, fields).meters).toMatchObject([
      { meter: 'requests', limit: 100, windowMs: 21_600_000, level: { lowest: 23, highest: 24 } },
    ]);
  });

  test('are no limit of a minute when their hour has not ended', () => {
    const fields = {
      'x-ratelimit-limit': '5000',
      'x-ratelimit-remaining': '4999',
      'x-ratelimit-reset': String(now / 1000 + 3000),
    };
    expect(learn(200, fields).meters).toMatchObject([
      { meter: 'requests', limit: 5000, windowMs: null, resetMs: 3_000_000 },
    ]);
  });

  test('make several meters when they state several windows', () => {
    const two = {
      'ratelimit-policy': '"second";q=10;w=1, "minute";q=100;w=60',
      ratelimit: '"second";r=9;t=1',
    };
    expect(learn(200, two).meters).toMatchObject([
      { meter: 'requests_burst', limit: 10, windowMs: 1_000, level: { lowest: 0, highest: 1 } },
      { meter: 'requests', limit: 100, windowMs: 60_000, level: null },
    ]);
    const three = { 'x-ratelimit-limit': '10, 10;w=1, 50;w=60, 1000;w=3600', 'x-ratelimit-remaining': '4' };
    expect(learn(200, three).meters).toMatchObject([
      { meter: 'requests_burst', limit: 10, windowMs: 1_000, level: { lowest: 5, highest: 6 } },
      { meter: 'requests', limit: 50, windowMs: 60_000, level: null },
      { meter: 'requests_hour', limit: 1_000, windowMs: 3_600_000, level: null },
    ]);
  });

  test('make the window that comes alone the meter of requests, whatever its length', () => {
    const fields = (w: number) => ({ 'ratelimit-policy': `"a";q=10;w=${w}`, ratelimit: '"a";r=9;t=1' });
    expect(learn(200, fields(1)).meters).toMatchObject([{ meter: 'requests', windowMs: 1_000 }]);
    expect(learn(200, fields(3600)).meters).toMatchObject([{ meter: 'requests', windowMs: 3_600_000 }]);
    expect(learn(200, fields(86_400)).meters).toMatchObject([{ meter: 'requests_day' }]);
  });

  test('state the length of their window when they are named after it', () => {
    const fields = {
      'x-ratelimit-limit-second': '5',
      'x-ratelimit-remaining-second': '4',
      'x-ratelimit-limit-hour': '1000',
      'x-ratelimit-remaining-hour': '990',
      'x-ratelimit-limit-day': '9000',
    };
    expect(learn(200, fields).meters).toMatchObject([
      { meter: 'requests', limit: 5, windowMs: 1_000, level: { lowest: 0, highest: 1 } },
      { meter: 'requests_hour', limit: 1_000, windowMs: 3_600_000, level: { lowest: 9, highest: 10 } },
      { meter: 'requests_day', limit: 9_000, windowMs: 86_400_000 },
    ]);
  });

  test('state what is left also of a window of unknown length', () => {
    const fields = { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '3', 'x-ratelimit-reset': '1' };
    expect(learn(200, fields).meters).toEqual([
      { meter: 'requests', limit: 10, windowMs: null, resetMs: 1_000, level: { lowest: 6, highest: 7 } },
    ]);
  });
});
