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
    method: 'GET',
    path: '/',
    nowMs: now,
  });

describe('refusals of an upstream of unknown make', () => {
  test('429 waits as told, or is a refusal without a hint', () => {
    expect(learn(429, { 'retry-after': '3' }).throttle).toEqual({
      kind: 'rate',
      waitMs: 3000,
      meter: 'requests',
    });
    expect(learn(429, {}).throttle).toEqual({ kind: 'rate', waitMs: null, meter: 'requests' });
  });

  test('503 is overload', () => {
    expect(learn(503, { 'retry-after': '3' }).throttle).toEqual({ kind: 'overload', waitMs: 3000 });
  });

  test.each([200, 403, 500])('%d is no refusal', (status) => {
    expect(learn(status, { 'retry-after': '3' }).throttle).toBeNull();
  });

  test('an exhausted window on a 429 says when it ends, but Retry-After wins', () => {
    const fields = { 'ratelimit-policy': '"a";q=10;w=60', ratelimit: '"a";r=0;t=12' };
    expect(learn(429, fields).throttle?.waitMs).toBe(12_000);
    expect(learn(429, { ...fields, 'retry-after': '20' }).throttle?.waitMs).toBe(20_000);
    expect(learn(429, { ...fields, ratelimit: '"a";r=5;t=12' }).throttle?.waitMs).toBeNull();
  });
});

describe('quotas in fields', () => {
  test('policies become meters by their windows', () => {
    const fields = {
      'ratelimit-policy': '"burst";q=10;w=10, "daily";q=5000;w=86400',
      ratelimit: '"burst";r=8;t=1, "daily";r=4998;t=69076',
    };
    expect(learn(200, fields).meters).toEqual([
      { meter: 'requests', limit: 10, windowMs: 10_000, level: { lowest: 1, highest: 2 } },
      { meter: 'requests_day', limit: 5000, windowMs: 86_400_000, level: { lowest: 1, highest: 2 } },
    ]);
  });

  test('a quota in another unit is not a request limit', () => {
    const fields = { 'ratelimit-policy': '"a";q=10;w=10;qu="content-bytes"', ratelimit: '"a";r=8' };
    expect(learn(200, fields).meters).toEqual([]);
  });

  test.each(['"a;q=1', ';;;', '"a";q=x;w=-1', ',,,', '"a"="b"', 'a'.repeat(5000)])(
    '%.20p is ignored',
    (value) => {
      expect(learn(200, { 'ratelimit-policy': value, ratelimit: value }).meters).toEqual([]);
    },
  );

  test('quoted names may hold separators', () => {
    expect(quotasOf(new Map([['ratelimit', '"a;b, c\\"d";r=4']]))).toMatchObject([{ r: 4 }]);
  });

  test('the older three fields are read with the window their policy states', () => {
    const fields = {
      'ratelimit-limit': '100, 100;w=60',
      'ratelimit-remaining': '90',
      'ratelimit-reset': '30',
    };
    expect(learn(200, fields).meters).toEqual([
      { meter: 'requests', limit: 100, windowMs: 60_000, level: { lowest: 9, highest: 10 } },
    ]);
  });

  test('an hour that is not over cannot be a minute', () => {
    const fields = {
      'x-ratelimit-limit': '5000',
      'x-ratelimit-remaining': '4999',
      'x-ratelimit-reset': String(now / 1000 + 3000),
    };
    expect(learn(200, fields).meters).toMatchObject([
      { meter: 'requests', limit: 5000, windowMs: null, resetMs: 3_000_000 },
    ]);
  });

  test('several windows told at once are several meters', () => {
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

  test('a window alone is the meter of requests, whatever its length', () => {
    const fields = (w: number) => ({ 'ratelimit-policy': `"a";q=10;w=${w}`, ratelimit: '"a";r=9;t=1' });
    expect(learn(200, fields(1)).meters).toMatchObject([{ meter: 'requests', windowMs: 1_000 }]);
    expect(learn(200, fields(3600)).meters).toMatchObject([{ meter: 'requests', windowMs: 3_600_000 }]);
    expect(learn(200, fields(86_400)).meters).toMatchObject([{ meter: 'requests_day' }]);
  });

  test('fields named after their window say how long it is', () => {
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

  test('what is left of a window of untold length is told on', () => {
    const fields = { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '3', 'x-ratelimit-reset': '1' };
    expect(learn(200, fields).meters).toEqual([
      { meter: 'requests', limit: 10, windowMs: null, resetMs: 1_000, level: { lowest: 6, highest: 7 } },
    ]);
  });
});
