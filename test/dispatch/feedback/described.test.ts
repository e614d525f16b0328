/** What an operator describes of an upstream: conditions of a refusal, whom each concerns, where its wait stands, its windows. */
import { describe, expect, test } from '@jest/globals';
import { buildDialect, speaks, type SpeaksInput } from '../../../src/config/speaks.ts';
import { dayMs, error, learn, limits, metersOf, nowMs, throttleOf, waitOf } from './learning.ts';
import type { Response } from './learning.ts';

describe('the conditions of a refusal', () => {
  const twoMeanings: SpeaksInput = {
    throttledBy: [{ status: 403, body: 'Too many at once', waitSeconds: 2, scope: 'bucket' }],
    permanentBy: [{ status: 403, body: 'LIMIT_EXCEEDED', waitSeconds: 900, scope: 'bucket' }],
  };
  test.each<[string, object | null]>([
    ['{"code":"LIMIT_EXCEEDED","message":"too many at once"}', { kind: 'rate', waitMs: 2_000 }],
    ['{"code":"LIMIT_EXCEEDED","message":"no calls left today"}', { kind: 'permanent', waitMs: 900_000 }],
    ['{"code":"FORBIDDEN"}', null],
  ])('one code with two messages has two meanings: %s', (body, expected) => {
    const throttle = throttleOf({ speaks: twoMeanings }, { status: 403, body });
    expect(throttle).toEqual(expected === null ? null : expect.objectContaining(expected));
  });

  const plain = { status: 403 };
  const limited = { status: 403, body: 'limit' };
  test.each<[string, object, object]>([
    ['a condition with more parts', plain, { status: 403, body: 'plan limit' }],
    ['a text around the other one', limited, { status: 403, body: 'plan limit' }],
    ['all texts of a list', limited, { status: 403, body: ['the limit', 'of your plan'] }],
    ['a field with its value', { ...plain, field: 'x-why' }, { ...plain, field: 'x-why', equals: 'plan' }],
  ])('%s counts before one that says less', (_, less, more) => {
    const body = 'This is above the plan limit. The limit is that of your plan.';
    const refusal = { status: 403, fields: { 'x-why': 'plan' }, body };
    const kindOf = (throttled: object, permanent: object) =>
      throttleOf({ speaks: { throttledBy: [throttled], permanentBy: [permanent] } as SpeaksInput }, refusal)
        ?.kind;
    expect([kindOf(less, more), kindOf(more, less)]).toEqual(['permanent', 'rate']);
  });

  test('of several of one kind the most exact one names wait and scope, wherever it stands', () => {
    const exact = { status: 429, field: 'x-why', equals: 'all', waitSeconds: 5 } as const;
    const throttledBy = [
      { status: 429, waitSeconds: 60 },
      { ...exact, scope: 'credential' as const },
    ];
    const speaks: SpeaksInput = { throttledBy };
    const expected = { kind: 'rate', waitMs: 5_000, meter: null, scope: 'credential' };
    expect(throttleOf({ speaks }, { fields: { 'x-why': 'all' } })).toEqual(expected);
    expect(throttleOf({ speaks })).toMatchObject({ kind: 'rate', waitMs: 60_000 });
  });

  test('a wait that the response states goes before that of the condition', () => {
    const refusal = { status: 403, fields: { 'retry-after': '7' }, body: 'LIMIT_EXCEEDED: too many at once' };
    expect(waitOf({ speaks: twoMeanings }, refusal)).toBe(7_000);
  });

  test('one that concerns its call alone says nothing of the windows of its bucket', () => {
    const speaks: SpeaksInput = {
      fields: { limit: 'x-limit', remaining: 'x-left', window: 60 },
      throttledBy: [{ status: 429, body: 'this order', scope: 'call', waitSeconds: 3 }],
    };
    const fields = { 'x-limit': '10', 'x-left': '0' };
    const alone = { meter: null, scope: 'call', waitMs: 3_000 };
    expect(throttleOf({ speaks }, { fields, body: 'this order is locked' })).toMatchObject(alone);
    expect(throttleOf({ speaks }, { fields })).toMatchObject({ meter: 'requests' });
  });
});

describe('what is described of a language model or a shop goes before what is known of its kind:', () => {
  const speaks: SpeaksInput = {
    permanentBy: [
      { status: 429, body: 'monthly budget of this key' },
      { status: 400, body: 'not for this model', scope: 'call' },
    ],
    throttledBy: [{ status: 403, body: 'warming up', waitSeconds: 4, scope: 'credential' }],
    waitIn: [{ body: '/error/again_in', as: 'seconds' }],
  };
  const says = (message: string, more = {}): object => error(message, { type: 'rate_limit_error', ...more });
  const budget = says('The monthly budget of this key is used up.');
  const spent = error('You exceeded your current quota.', { code: 'insufficient_quota' });
  const warming = { kind: 'rate', waitMs: 4_000, meter: null, scope: 'credential' };
  const ofCall = { status: 400, body: says('Not for this model.') };
  const again = { body: says('Slow down.', { again_in: 17 }) };
  const known = { body: says('Rate limit reached.'), fields: { 'retry-after': '3' } };
  test.each<[string, Response, object, ('language-model' | 'commerce')?]>([
    ['a refusal for good', { body: budget }, { kind: 'permanent', reason: 'quota' }],
    ['one of a shop', { body: budget }, { kind: 'permanent', reason: 'quota' }, 'commerce'],
    ['one of a call', ofCall, { kind: 'permanent', scope: 'call' }],
    ['one of the credential', { status: 403, body: says('We are warming up.') }, warming],
    ['where its wait stands', again, { kind: 'rate', waitMs: 17_000 }],
    ['all else is as its kind has it', known, { kind: 'rate', waitMs: 3_000 }],
    ['also what is permanent', { body: spent }, { kind: 'permanent', reason: 'quota' }],
  ])('%s: %j', (_, response, expected, kind = 'language-model') => {
    expect(throttleOf({ kind, speaks }, response)).toMatchObject(expected);
  });

  test('limits and refused credentials are those of the kind', () => {
    const fields = { 'x-ratelimit-limit-requests': '500', 'x-ratelimit-remaining-requests': '499' };
    const who = { kind: 'language-model', speaks } as const;
    expect(learn(who, { fields }).meters).toMatchObject([{ meter: 'requests', limit: 500 }]);
    expect(learn(who, { status: 401, body: {} }).refusesCredential).toBe(true);
  });
});

describe('the wait of a described dialect', () => {
  const waitIn: SpeaksInput['waitIn'] = [
    { field: 'X-Acme-Retry', as: 'duration' },
    { field: 'x-acme-quota', member: 'resets', as: 'milliseconds' },
    { body: '/errors/0/wait', as: 'milliseconds' },
    { body: 'come back in (\\d+) ticks', as: 'milliseconds' },
    { body: '/until', as: 'epoch-seconds' },
  ];

  test.each<[string, Response, number | null]>([
    ['in a field', { fields: { 'x-acme-retry': '1m30s' } }, 90_000],
    ['in a member of a field', { fields: { 'x-acme-quota': 'left=0; resets=700' } }, 700],
    ['behind a pointer', { body: { errors: [{ wait: 1_500 }] } }, 1_500],
    ['in a pattern', { body: 'Come back in 250 ticks.' }, 250],
    ['as an epoch', { body: { until: nowMs / 1_000 + 4 } }, 4_000],
    ['before Retry-After', { fields: { 'x-acme-retry': '2s', 'retry-after': '9' } }, 2_000],
    ['beside Retry-After', { fields: { 'x-acme-retry': 'never', 'retry-after': '9' } }, 9_000],
    ['beside a usual body', { body: { retry_after: 3 } }, 3_000],
    ['beside limits that are used up', { fields: limits('x-ratelimit', 5, 0, '6') }, 6_000],
    ['nowhere', { body: { errors: [{ wait: 'long' }] } }, null],
  ])('is read %s', (_, refusal, expected) => expect(waitOf({ speaks: { waitIn } }, refusal)).toBe(expected));

  test('is not guessed from its windows where it says how long an unstated one is', () => {
    const windows: SpeaksInput['windows'] = [{ requests: 5, seconds: 10, kind: 'rolling' }];
    expect(waitOf({ speaks: { windows } })).toBe(10_000);
    expect(waitOf({ speaks: { windows, hintlessSeconds: 2 } })).toBeNull();
  });

  test('makes bodies of successes worth reading where those refuse', () => {
    const throttledBy: SpeaksInput['throttledBy'] = [{ status: [200, 400], field: 'x-refused' }];
    expect(buildDialect(speaks.parse({ throttledBy })).dialect.bodyStatuses).toEqual([]);
    expect(buildDialect(speaks.parse({ throttledBy, waitIn })).dialect.bodyStatuses).toEqual([200]);
  });
});

describe('what is left of a described window', () => {
  const hours = { windows: [{ requests: 300, seconds: 10_800, kind: 'rolling' as const }] };
  const minute = { windows: [{ requests: 100, seconds: 60, kind: 'rolling' as const }] };
  const named = { fields: { limit: 'a-limit', remaining: 'a-left', reset: 'a-reset' } };
  const inFields = { 'a-limit': '1000', 'a-left': '900', 'a-reset': '80000' };
  const day = { meter: 'requests_day' };
  const threeHours = { meter: 'requests', limit: 300, windowMs: 10_800_000 };
  test.each<[string, SpeaksInput, Record<string, string>, object]>([
    ['is of its three hours', hours, limits('x-ratelimit', 300, 299, '10000'), threeHours],
    ['is of its three hours, a second off', hours, limits('x-ratelimit', 300, 299, '10801'), threeHours],
    ['is of a day, where it is longer', minute, limits('x-ratelimit', 100, 99, '80000'), day],
    ['is of a day, where only fields are described', named, inFields, { ...day, windowMs: dayMs }],
  ])('%s', (_, speaks, fields, expected) => expect(metersOf({ speaks }, fields)).toMatchObject([expected]));

  test('is of one day where app and user have the same limit, that of the field described first', () => {
    const dayOf = (of: string) => ({ limit: `${of}-limit`, remaining: `${of}-left`, window: 86_400 });
    const speaks = { windows: [{ requests: 100, seconds: 900 }], fields: [dayOf('app'), dayOf('user')] };
    const fields = { 'app-limit': '17', 'app-left': '2', 'user-limit': '17', 'user-left': '9' };
    expect(metersOf({ speaks }, fields)).toEqual([
      { meter: 'requests_day', limit: 17, windowMs: dayMs, level: { lowest: 14, highest: 15 } },
    ]);
  });
});
