/** A 429 that says that too many calls are in flight, in the words of real providers, and those that say something else. */
import { expect, test } from '@jest/globals';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { dialectOf } from '../../../src/config/speaks.ts';
import { unknownDialect } from '../../../src/dispatch/feedback/dialect.policy.ts';

const error = (message: string): string => JSON.stringify({ error: { message } });

const refusals = [
  'Your account org-x<ak-x> request reached organization max concurrency: 3, please try again after 1 seconds',
  'High concurrency usage of this API, please reduce concurrency or contact customer service to increase limits',
  'Number of concurrent connections has exceeded your rate limit.',
  'Too many simultaneous requests.',
  'You have reached the maximum parallel requests of your plan.',
  'Application is over its MailboxConcurrency limit.',
  'You have exceeded the limit of 10 simultaneous connections.',
  '您当前使用该API的并发数过高，请降低并发，或联系客服增加限额。',
];
const others = [
  'Rate limit reached for requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.',
  'Too many requests. See https://docs.example.com/limits/concurrency for the limits.',
];

const facts = (body: string, status = 429) => ({
  status,
  fields: new Map<string, string>(),
  body,
  callClass: 'default',
  nowMs: 1_800_000_000_000,
});

test.each(refusals)('says that too many calls are in flight: %s', (message) => {
  const body = error(message);
  for (const kind of ['language-model', 'generic'] as const)
    expect(learnFrom(kind, facts(body))).toMatchObject({
      refusesConcurrency: true,
      throttle: { kind: 'rate', meter: null },
    });
  expect(learnFrom('generic', facts(body), unknownDialect).refusesConcurrency).toBe(true);
});

test.each(others)('says something else: %s', (message) => {
  const feedback = learnFrom('language-model', facts(error(message)));
  expect(feedback.throttle?.kind).toBe('rate');
  expect(feedback).not.toHaveProperty('refusesConcurrency');
});

test('a success that speaks of concurrency is no refusal', () => {
  expect(learnFrom('language-model', facts('{"content":"concurrency"}', 200))).not.toHaveProperty(
    'refusesConcurrency',
  );
});

test.each([
  [
    403,
    'salesforce',
    { body: '[{"message":"ConcurrentRequests Limit exceeded.","errorCode":"REQUEST_LIMIT_EXCEEDED"}]' },
  ],
  [429, 'xero', { fields: { 'x-rate-limit-problem': 'concurrent' } }],
  [429, 'stripe', { fields: { 'stripe-rate-limited-reason': 'global-concurrency' } }],
] as const)(
  'a refusal with %i of %s says so as well',
  (status, preset, said: { body?: string; fields?: object }) => {
    const fields = new Map<string, string>(Object.entries(said.fields ?? {}));
    const refusal = { ...facts(said.body ?? '', status), fields };
    expect(learnFrom('generic', refusal, dialectOf(preset).dialect).refusesConcurrency).toBe(true);
  },
);
