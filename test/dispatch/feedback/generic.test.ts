/** What the fields of an API that nobody has described teach: refusals, windows by the drafts of the IETF and by usual names. */
import { describe, expect, test } from '@jest/globals';
import { learnFromStreamEvent } from '../../../src/dispatch/feedback/language-model.policy.ts';
import { dayMs, error, limits, meterWords, metersOf, nowMs, quota, throttleOf, waitOf } from './learning.ts';
import type { Fields, Who } from './learning.ts';

describe('a refusal of a generic upstream', () => {
  const window = { 'ratelimit-policy': '"a";q=10;w=60', ratelimit: '"a";r=0;t=12' };
  const later = { 'retry-after': '3' };
  test.each<[string, number, Fields, object | null]>([
    ['waits as stated', 429, later, { kind: 'rate', waitMs: 3_000, meter: 'requests' }],
    ['states no wait without a field', 429, {}, { kind: 'rate', waitMs: null, meter: 'requests' }],
    ['waits until a window without room ends', 429, window, { waitMs: 12_000 }],
    ['waits as stated before that', 429, { ...window, ...later }, { waitMs: 3_000 }],
    ['does not wait for a window with room', 429, { ...window, ratelimit: '"a";r=5;t=12' }, { waitMs: null }],
    ['is overload', 503, later, { kind: 'overload', waitMs: 3_000 }],
    ['is not seen in a success', 200, later, null],
    ['is not seen in a forbidden call', 403, later, null],
    ['is not seen in an error', 500, later, null],
  ])('%s: %d %j', (_, status, fields, expected) => {
    const throttle = throttleOf('generic', { status, fields });
    if (expected === null) expect(throttle).toBeNull();
    else expect(throttle).toMatchObject(expected);
  });
});

describe('a wait of years is a day', () => {
  const body = error('Rate limit reached. Please try again in 99999999h.', { code: 'rate_limit_exceeded' });
  test.each<[Who, Fields, unknown]>([
    ['generic', { ratelimit: '"a";r=0;t=999999999999999' }, null],
    ['generic', limits('x-ratelimit', 10, 0, '9999999999'), null],
    ['language-model', {}, body],
  ])('of a %s upstream: %j %j', (who, fields, said) => {
    expect(waitOf(who, { fields, body: said })).toBe(dayMs);
  });

  test('in an event of a stream', () =>
    expect(learnFromStreamEvent(JSON.stringify(body), nowMs).throttle?.waitMs).toBe(dayMs));
});

const structured = (policy: string, ratelimit: string): Fields => ({ 'ratelimit-policy': policy, ratelimit });
const named = {
  'x-ratelimit-limit-second': '5',
  'x-ratelimit-remaining-second': '4',
  'x-ratelimit-limit-hour': '1000',
  'x-ratelimit-remaining-hour': '990',
  'x-ratelimit-limit-day': '9000',
};
const inOne = { 'x-ratelimit-limit': '10, 10;w=1, 50;w=60, 1000;w=3600', 'x-ratelimit-remaining': '4' };
const burst = structured('"second";q=10;w=1, "minute";q=100;w=60', '"second";r=9;t=1');
const behind = { 'ratelimit-limit': '100;w=21600', 'ratelimit-remaining': '76;w=21600' };
const triple = limits('ratelimit', 100, 90, '30');
const usedInstead = {
  'x-ratelimit-used': '4',
  'x-ratelimit-remaining': '96.0',
  'x-ratelimit-reset': '30',
};
const threeQuarters = limits('x-ratelimit', 5_000, 4_999, String(nowMs / 1_000 + 3_000));

test.each<[string, Fields, string]>([
  ['a burst beside a minute', burst, 'requests_burst 10/1s 0..1, requests 100/60s'],
  ['three windows in one', inOne, 'requests_burst 10/1s 5..6, requests 50/60s, requests_hour 1000/3600s'],
  ['windows by name', named, 'requests 5/1s 0..1, requests_hour 1000/3600s 9..10, requests_day 9000/86400s'],
  ['the policy in three fields', limits('ratelimit', '100, 100;w=60', 90, '30'), 'requests 100/60s 9..10'],
  ['a policy beside three fields', { ...triple, 'ratelimit-policy': '100;w=60' }, 'requests 100/60s 9..10'],
  [
    'a policy of another limit',
    { ...triple, 'ratelimit-policy': '5;w=1' },
    'requests 100/? resets in 30s 9..10',
  ],
  ['what is used instead of a limit', usedInstead, 'requests 100/? resets in 30s 3..4'],
  ['a policy without a name', structured('10;w=6', 'limit=10, remaining=4, reset=3'), 'requests 10/6s 5..6'],
  ['a window behind each number', behind, 'requests 100/21600s 23..24'],
  ['a second alone', structured('"a";q=10;w=1', '"a";r=9'), 'requests 10/1s 0..1'],
  ['an hour alone', structured('"a";q=1;w=3600', '"a";r=1'), 'requests 1/3600s 0..0'],
  ['a day alone', structured('"a";q=10;w=86400', '"a";r=9'), 'requests_day 10/86400s 0..1'],
  ['no more than a day', structured('"a";q=1;w=9999999999', '"a";r=0;t=1'), 'requests_day 1/86400s 0..1'],
  ['no requests of another unit', structured('"a";q=10;w=10;qu="content-bytes"', '"a";r=8'), ''],
  ['no minute, where an hour has not ended', threeQuarters, 'requests 5000/? resets in 3000s 0..1'],
  ['an unknown length', limits('x-ratelimit', 10, 3, '1'), 'requests 10/? resets in 1s 6..7'],
  ['a day by what is left', limits('x-ratelimit', 1_000, 999, '80000'), 'requests_day 1000/86400s 0..1'],
  ['an hour by a clock ahead', limits('x-ratelimit', 1_000, 999, '3601'), 'requests 1000/3600s 0..1'],
  ['no window but a day', structured('"p";q=9', '"p";r=7;t=80000'), 'requests_day 9/86400s 1..2'],
])('the fields of a success state %s: %j', (_, fields, expected) =>
  expect(meterWords('generic', fields)).toBe(expected),
);

test.each(['"a;q=1', ';;;', '"a";q=x;w=-1', ',,,', '"a"="b"', 'a'.repeat(5_000)])(
  'structured fields are ignored when they say %.20p',
  (value) => expect(metersOf('generic', structured(value, value))).toEqual([]),
);

test('structured fields may have separators inside quoted names', () => {
  const quota = structured('"a;b, c\\"d";q=9;w=60', '"a;b, c\\"d";r=4');
  expect(metersOf('generic', quota)).toMatchObject([{ limit: 9, level: { highest: 5 } }]);
});

test.each<Fields>([
  { 'x-ratelimit-limit-tokens': '0.0000001' },
  { 'x-ratelimit-limit-tokens': '9'.repeat(60) },
])('numbers that cannot be a quota are ignored: %j', (fields) => {
  expect(metersOf('language-model', fields)).toEqual([]);
});

test('a period of renewal is a day at most', () => {
  const period = { 'x-ratelimit-renewalperiod-requests': `1${'0'.repeat(30)}` };
  const fields = { ...quota('requests', 1, 0, ''), ...period };
  expect(metersOf('language-model', fields)).toMatchObject([{ windowMs: dayMs }]);
});
