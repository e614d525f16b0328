import { expect, test } from '@jest/globals';
import { costFromTail } from '../../../src/dispatch/feedback/commerce.policy.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { learnFromStreamEvent } from '../../../src/dispatch/feedback/stream-event.policy.ts';

const dayMs = 86_400_000;
const refusal = { status: 429, callClass: 'default', nowMs: 1_800_000_000_000 };
const message = 'Rate limit reached on tokens per min (TPM). Please try again in 99999999h.';

test.each([
  ['generic', { ratelimit: '"a";r=0;t=999999999999999' }, null],
  [
    'generic',
    { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '9999999999' },
    null,
  ],
  ['language-model', {}, JSON.stringify({ error: { code: 'rate_limit_exceeded', message } })],
] as const)('the feedback of a %s upstream reads a wait of years as a day: %j', (kind, fields, body) => {
  const reported = learnFrom(kind, { ...refusal, fields: new Map(Object.entries(fields)), body });
  expect(reported.throttle?.waitMs).toBe(dayMs);
});

test('the feedback of a stream reads a wait of years as a day', () => {
  const event = JSON.stringify({ error: { code: 'rate_limit_exceeded', message } });
  expect(learnFromStreamEvent(event, refusal.nowMs).throttle?.waitMs).toBe(dayMs);
});

const success = { ...refusal, status: 200 };
const taught = (
  kind: 'generic' | 'language-model' | 'commerce',
  callClass: string,
  fields: Readonly<Record<string, string>>,
  body: string | null = null,
) => learnFrom(kind, { ...success, callClass, fields: new Map(Object.entries(fields)), body });
const graphql = (cost: unknown) => JSON.stringify({ data: { shop: {} }, extensions: { cost } });
const status = (maximumAvailable: number, currentlyAvailable: number, restoreRate: number) =>
  graphql({ throttleStatus: { maximumAvailable, currentlyAvailable, restoreRate } });

test.each(['9999999/1', '9999999/40', '41/40'])(
  'the feedback of a commerce upstream reads a call limit of %s as a full bucket',
  (reported) => {
    const [report] = taught('commerce', 'rest', { 'x-shopify-shop-api-call-limit': reported }).meters;
    expect(report?.level?.highest).toBe(report?.limit);
    expect(report?.level?.lowest).toBeLessThanOrEqual(report?.limit ?? 0);
  },
);

test('the feedback of a language model reads a reset in years as a full bucket', () => {
  const fields = {
    'x-ratelimit-limit-requests': '60',
    'x-ratelimit-reset-requests': '999999999s',
    'x-ratelimit-renewalperiod-requests': '60',
  };
  expect(taught('language-model', 'default', fields).meters).toEqual([
    { meter: 'requests', limit: 60, windowMs: 60_000, level: { lowest: 60, highest: 60 } },
  ]);
});

test.each([
  ['generic', 'default', { 'ratelimit-policy': '"a";q=1;w=999999999999999', ratelimit: '"a";r=0;t=1' }, null],
  [
    'language-model',
    'default',
    {
      'x-ratelimit-limit-requests': '1',
      'x-ratelimit-remaining-requests': '0',
      'x-ratelimit-renewalperiod-requests': `1${'0'.repeat(30)}`,
    },
    null,
  ],
  ['commerce', 'graphql', {}, status(1000, 0, 1e-9)],
  ['commerce', 'graphql', {}, status(1000, 0, Number.MIN_VALUE)],
] as const)(
  'the feedback of a %s upstream makes a bucket drain within a day: %s %j %s',
  (kind, callClass, fields, body) => {
    expect(taught(kind, callClass, fields, body).meters).toMatchObject([{ windowMs: dayMs }]);
  },
);

test.each([
  ['commerce', 'graphql', {}, status(Number.MIN_VALUE, 0, Number.MAX_VALUE)],
  ['commerce', 'graphql', {}, status(Number.MAX_VALUE, 0, 1e-10)],
  ['language-model', 'default', { 'x-ratelimit-limit-tokens': '0.0000001' }, null],
  ['language-model', 'default', { 'x-ratelimit-limit-tokens': '9'.repeat(60) }, null],
] as const)(
  'the feedback of a %s upstream ignores numbers that cannot be a quota: %s %j %s',
  (kind, callClass, fields, body) => {
    expect(taught(kind, callClass, fields, body).meters).toEqual([]);
  },
);

test('the feedback of a commerce upstream counts no document as more than a full bucket', () => {
  const throttleStatus = { maximumAvailable: 1000, currentlyAvailable: 990, restoreRate: 50 };
  const reported = graphql({ requestedQueryCost: 1e308, actualQueryCost: 1e300, throttleStatus });
  const full = { requestedCost: 1000, actualCost: 1000 };
  expect(taught('commerce', 'graphql', {}, reported)).toMatchObject(full);
  expect(costFromTail(reported)).toMatchObject(full);
});
