/** Conditions of a described dialect: which of several counts, the wait of each, and whom it concerns. */
import { expect, test } from '@jest/globals';
import type { Throttle } from '../../../src/call.ts';
import { dialectOf, type SpeaksInput } from '../../../src/config/speaks.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

interface Refusal {
  readonly status: number;
  readonly fields?: Readonly<Record<string, string>>;
  readonly body?: string;
}

function throttleOf(speaks: SpeaksInput, { status, fields = {}, body = '' }: Refusal): Throttle | null {
  const facts = { status, fields: new Map(Object.entries(fields)), body, callClass: 'default', nowMs: 0 };
  return learnFrom('generic', facts, dialectOf(speaks).dialect).throttle;
}

const twoMeanings: SpeaksInput = {
  throttledBy: [{ status: 403, body: 'Too many at once', waitSeconds: 2, scope: 'bucket' }],
  permanentBy: [{ status: 403, body: 'LIMIT_EXCEEDED', waitSeconds: 900, scope: 'bucket' }],
};

test.each([
  ['{"code":"LIMIT_EXCEEDED","message":"too many at once"}', 'rate', 2_000],
  ['{"code":"LIMIT_EXCEEDED","message":"no calls left today"}', 'permanent', 900_000],
  ['{"code":"FORBIDDEN"}', undefined, undefined],
] as const)('one code with two messages has two meanings: %s', (body, kind, waitMs) => {
  const throttle = throttleOf(twoMeanings, { status: 403, body });
  expect([throttle?.kind, throttle?.waitMs]).toEqual([kind, waitMs]);
});

test.each([
  ['a condition with more parts', [{ status: 403 }], [{ status: 403, body: 'plan limit' }]],
  ['a text around the other one', [{ status: 403, body: 'limit' }], [{ status: 403, body: 'plan limit' }]],
  [
    'all texts of a list',
    [{ status: 403, body: 'limit' }],
    [{ status: 403, body: ['the limit', 'of your plan'] }],
  ],
  [
    'a field with its value',
    [{ status: 403, field: 'x-why' }],
    [{ status: 403, field: 'x-why', equals: 'plan' }],
  ],
] as const)('%s counts before one that says less', (_, throttledBy, permanentBy) => {
  const body = 'This is above the plan limit. The limit is that of your plan.';
  const refusal = { status: 403, fields: { 'x-why': 'plan' }, body };
  const written = { throttledBy, permanentBy } as unknown as SpeaksInput;
  expect(throttleOf(written, refusal)?.kind).toBe('permanent');
  const turned = { throttledBy: permanentBy, permanentBy: throttledBy } as unknown as SpeaksInput;
  expect(throttleOf(turned, refusal)?.kind).toBe('rate');
});

test('of several conditions of one kind the most exact one names wait and scope, wherever it stands', () => {
  const throttledBy: SpeaksInput['throttledBy'] = [
    { status: 429, waitSeconds: 60 },
    { status: 429, field: 'x-why', equals: 'all', waitSeconds: 5, scope: 'credential' },
  ];
  const global = throttleOf({ throttledBy }, { status: 429, fields: { 'x-why': 'all' } });
  expect(global).toEqual({ kind: 'rate', waitMs: 5_000, meter: null, scope: 'credential' });
  expect(throttleOf({ throttledBy }, { status: 429 })).toMatchObject({ kind: 'rate', waitMs: 60_000 });
});

test('a wait that the response states goes before that of the condition', () => {
  const refusal = { status: 403, fields: { 'retry-after': '7' }, body: 'LIMIT_EXCEEDED: too many at once' };
  expect(throttleOf(twoMeanings, refusal)?.waitMs).toBe(7_000);
});

test('a refusal that concerns its call alone says nothing of the windows of its bucket', () => {
  const speaks: SpeaksInput = {
    fields: { limit: 'x-limit', remaining: 'x-left', window: 60 },
    throttledBy: [{ status: 429, body: 'this order', scope: 'call', waitSeconds: 3 }],
  };
  const fields = { 'x-limit': '10', 'x-left': '0' };
  expect(throttleOf(speaks, { status: 429, fields, body: 'this order is locked' })).toMatchObject({
    meter: null,
    scope: 'call',
    waitMs: 3_000,
  });
  expect(throttleOf(speaks, { status: 429, fields })).toMatchObject({ meter: 'requests' });
});
