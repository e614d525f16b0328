/** Windows of more than an hour that a response shows by what is left of them, with and without a description of the upstream. */
import { describe, expect, test } from '@jest/globals';
import { dialectOf } from '../../../src/config/speaks.ts';
import type { SpeaksInput } from '../../../src/config/speaks.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const plain = (limit: number, resetSeconds: number): Record<string, string> => ({
  'x-ratelimit-limit': String(limit),
  'x-ratelimit-remaining': String(limit - 1),
  'x-ratelimit-reset': String(resetSeconds),
});
const factsOf = (fields: Readonly<Record<string, string>>) =>
  ({
    status: 200,
    fields: new Map(Object.entries(fields)),
    body: null,
    callClass: 'default',
    method: 'GET',
    path: '/',
    nowMs: 0,
  }) as const;
const metersOf = (speaks: SpeaksInput, fields: Readonly<Record<string, string>>) =>
  learnFrom('generic', factsOf(fields), dialectOf(speaks).dialect).meters;
const dayMs = 86_400_000;

describe('a response that states how much of a long window is left', () => {
  test.each([
    ['a day', 80_000, 'requests_day', dayMs],
    ['an hour, by a clock that is a second ahead', 3_601, 'requests', 3_600_000],
  ])('shows %s where nothing is described', (_what, seconds, meter, windowMs) => {
    expect(learnFrom('generic', factsOf(plain(1_000, seconds))).meters).toMatchObject([{ meter, windowMs }]);
  });

  test('shows a day where only the fields are described', () => {
    const speaks = { fields: { limit: 'a-limit', remaining: 'a-left', reset: 'a-reset' } };
    const fields = { 'a-limit': '1000', 'a-left': '900', 'a-reset': '80000' };
    expect(metersOf(speaks, fields)).toMatchObject([{ meter: 'requests_day', windowMs: dayMs }]);
  });

  test('shows a day where the structured field states no window', () => {
    const fields = { 'ratelimit-policy': '"p";q=1000', ratelimit: '"p";r=900;t=80000' };
    const { meters } = learnFrom('generic', factsOf(fields));
    expect(meters).toMatchObject([{ meter: 'requests_day', limit: 1_000, windowMs: dayMs }]);
  });

  test('speaks of the described window of three hours, and of no day', () => {
    const windows = [{ requests: 300, seconds: 10_800, kind: 'rolling' as const }];
    const expected = [{ meter: 'requests', limit: 300, windowMs: 10_800_000 }];
    expect(metersOf({ windows }, plain(300, 10_000))).toMatchObject(expected);
    expect(metersOf({ windows }, plain(300, 10_801))).toMatchObject(expected);
  });

  test('speaks of a day beside a described window that is shorter than what is left', () => {
    const windows = [{ requests: 100, seconds: 60, kind: 'rolling' as const }];
    expect(metersOf({ windows }, plain(100, 80_000))).toMatchObject([{ meter: 'requests_day', limit: 100 }]);
  });

  test('speaks of one day where app and user have the same limit, that of the field described first', () => {
    const windows = [{ requests: 100, seconds: 900 }];
    const day = (whose: string) => ({ limit: `${whose}-limit`, remaining: `${whose}-left`, window: 86_400 });
    const fields = { 'app-limit': '17', 'app-left': '2', 'user-limit': '17', 'user-left': '9' };
    expect(metersOf({ windows, fields: [day('app'), day('user')] }, fields)).toEqual([
      { meter: 'requests_day', limit: 17, windowMs: dayMs, level: { lowest: 14, highest: 15 } },
    ]);
  });
});
