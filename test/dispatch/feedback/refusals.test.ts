/** Refusals whose words decide: what no wait cures, for one call or for a whole account, and what ends by itself. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { learnFrom, unknownDialect } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { providerError } from '../../../src/dispatch/feedback/refusal.policy.ts';
import { error, learn, type Response, throttleOf, type Who } from './learning.ts';

const model = 'language-model';
const of402 = (body: unknown, fields = {}) => throttleOf(model, { status: 402, body, fields });
const permanent = (reason: string): object => ({ kind: 'permanent', reason, waitMs: null });

/** The same sentence in the envelopes of several providers. */
const envelopes = (message: string): readonly unknown[] => [
  error(message, { code: 402 }),
  error(message, { type: 'payment_required', code: '402' }),
  { type: 'error', ...error(message, { type: 'invalid_request_error' }) },
  { error: message },
  { message },
  { detail: message },
  { errors: [{ message }] },
  message,
];
const inEveryEnvelope = (message: string) => new Map(envelopes(message).map((body) => [body, of402(body)]));
const allOf = (message: string, reason: string) =>
  new Map(envelopes(message).map((body) => [body, permanent(reason)]));

describe('a 402 that lies in the call itself concerns no other:', () => {
  test.each([
    'This request requires more credits, or fewer max_tokens. You requested up to 64000 tokens, but can only afford 3500.',
    'You requested up to 8192 tokens, but can only afford 120. To increase, visit https://openrouter.ai/settings/credits',
    'Prompt tokens limit exceeded: 50000 > 20000. To increase, visit https://openrouter.ai/settings/credits and upgrade to a paid account',
    'Extra usage is required for long context requests.',
    'Long context requests require a paid plan',
    'Your organization does not have enough balance to request this action (need 6.5 credits, have 2)',
    'This request exceeds your quota of 10000. You have 12 credits remaining, while 120 credits are required for this request.',
    'This request would cost $1.20, your remaining balance is $0.40',
    'Insufficient credits for this request',
    'Please reduce max_tokens or add credits',
    'Your prompt is too long for the free plan',
    "This model's maximum context length is 8192 tokens on your plan",
    'You need 2,000 more credits to run this model with this context.',
    'You need 12 more credits for this image',
    '3.5 additional credits are needed for this generation.',
    'Requested 2048 output tokens; your balance covers 100.',
    'You asked for 10 seconds of video; only 4 remain',
    'Your balance of $1.50 does not cover the cost of this request',
    'Your balance is too low for this request',
    'Insufficient credits to run the requested model',
    'Not enough credits for the requested number of images (4). Lower `n` and try again.',
    'Not enough credits. Try a less expensive model or split the prompt.',
    'Estimated cost ($2.10) exceeds available balance ($1.05).',
    'Insufficient credits: this image requires 12 credits, you have 3.',
  ])('%s', (message) => expect(inEveryEnvelope(message)).toEqual(allOf(message, 'too_large')));

  const codes = 'context_length_exceeded request_too_large prompt_too_long max_tokens_exceeded'.split(' ');
  test.each(codes)('by its code %s, as well as a 429', (code) => {
    const body = error('no', { code });
    for (const status of [402, 429])
      expect(throttleOf(model, { status, body })).toEqual(permanent('too_large'));
  });
});

describe('a 402 of a spent account concerns everybody who uses it:', () => {
  test.each([
    'Insufficient Balance',
    'Insufficient credits. Add more using https://openrouter.ai/settings/credits',
    'Insufficient credits. This account never purchased credits. Make sure your key is on the correct account or org',
    'Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.',
    'You exceeded your current quota, please check your plan and billing details.',
    'Your account org-x is suspended due to insufficient balance, please recharge your account or check your plan and billing details',
    'Credit limit exceeded, please navigate to https://api.together.ai/settings/billing',
    'A positive credit balance is required for all AI requests, including BYOK.',
    'You have exceeded your monthly included credits for Inference Providers. Subscribe to PRO to get 20x more monthly included credits.',
    'Monthly spend limit reached',
    'Payment Required',
    'Your subscription is overdue',
    'You can only afford 0 tokens',
    'This request requires credits. Your balance is 0.00',
    'You have 0 credits remaining, 5 credits are required for this request',
    '余额不足或无可用资源包,请充值。',
    'Reached usage limit of $20. Increase it in settings',
    'This key has exceeded its monthly spending limit.',
    'Balance: $0.00. You need 5 more credits to run this model.',
    'The account balance is negative (-$0.02). This request costs $0.10.',
    'Your balance is -3.2 credits, this request requires 5 credits and you have none left',
    'Your credits are exhausted. This request requires 12 credits.',
    'You have run out of credits, reduce max_tokens or upgrade your plan.',
    'No credits remaining: use a cheaper model.',
    'You have $2 left; a minimum balance of $5 is required',
    'Insufficient balance, please reduce the number of requests or recharge',
    'You need more credits to continue',
    'You need 5 more credits to make requests',
    'Your spending limit blocks further requests. Raise the limit to use a model.',
  ])('%s', (message) => expect(inEveryEnvelope(message)).toEqual(allOf(message, 'quota')));

  test.each<unknown>([
    '',
    {},
    { error: {} },
    error('', { code: 402 }),
    error('no', { type: 'insufficient_quota' }),
    error('no', { type: 'billing_error' }),
    error('no', { type: 'billing_hard_limit_reached' }),
  ])('without a word, or by its code: %j', (body) => expect(of402(body)).toEqual(permanent('quota')));
});

const unknown = ['Nope.', 'Please contact us', '<html><h1>402</h1></html>', 'E-4711'];
test.each(unknown)('a 402 in unknown words is unclear: %s', (message) =>
  expect(inEveryEnvelope(message)).toEqual(allOf(message, 'unclear')),
);

const inFlight = { metadata: { limit_source: 'openrouter_in_flight_budget' } };
test.each<[string, unknown, number | null, number | null]>([
  ['as its Retry-After says, whatever it says of money', error('Insufficient credits'), 2, 2_000],
  ['as its Retry-After says, in unknown words', error('Nope.'), 2, 2_000],
  ['as its Retry-After says, in no words', error(''), 2, 2_000],
  ['as its Retry-After says, where money is bound', error('In-flight spending budget reached'), 2, 2_000],
  ['as its sentence says', error('Budget used up. Please try again in 20s.'), null, 20_000],
  ['with a back-off, where money is bound', error('In-flight spending budget reached'), null, null],
  ['with a back-off, where a member says so', error('Spending budget reached', inFlight), null, null],
])('a 402 that ends by itself is waited for %s: %j', (_, body, seconds, waitMs) => {
  const fields = seconds === null ? {} : { 'retry-after': String(seconds) };
  expect(of402(body, fields)).toEqual({ kind: 'rate', waitMs, meter: null });
});

test('a call that asks for too much is not sent again at the time that its refusal states', () => {
  expect(of402(error('can only afford 3500'), { 'retry-after': '2' })).toMatchObject({ reason: 'too_large' });
});

test.each([400, 404, 413, 422, 500])('a %i about the call is no throttle', (status) => {
  const body = error("This model's maximum context length is 8192", { code: 'context_length_exceeded' });
  expect(throttleOf(model, { status, body })).toBeNull();
});

const coded = (code: string | number, message: string, more = {}): object =>
  error(message, { code, ...more });
const zero = 'Quota exceeded for metric: free_tier_input_token_count, limit: 0\nPlease retry in 3.5s.';
const exhausted = { status: 'RESOURCE_EXHAUSTED' };
const eleven = (left: number): object => ({
  detail: { status: 'quota_exceeded', message: `You have ${left} credits remaining, while 36 are required.` },
});
const typed = (type: string, message: string): object => error(message, { type });

test.each<[string, object, string, number?]>([
  ['Moonshot', typed('exceeded_current_quota_error', 'suspended due to insufficient balance'), 'quota'],
  ['Zhipu, no balance', coded('1113', 'Insufficient balance or no resource package.'), 'quota'],
  ['Zhipu, five hours', coded('1308', 'Usage limit reached for 5 hour.'), 'quota'],
  ['Zhipu, a day', coded('1304', '该API已达当日调用次数限额'), 'daily'],
  ['a subscription', typed('usage_limit_reached', 'The usage limit has been reached'), 'quota'],
  ['Copilot', coded('quota_exceeded', 'You have exceeded your monthly allowance'), 'quota'],
  ['Ark, overdue', coded('AccountOverdueError', 'overdue', { type: 'Forbidden' }), 'quota', 403],
  ['Ark, a paused model', coded('SetLimitExceeded', 'paused', { type: 'TooManyRequests' }), 'daily'],
  ['Ark, a spent trial', coded('QuotaExceeded', 'Your account has exhausted its free trial quota'), 'quota'],
  ['Bedrock', { message: 'Too many tokens per day, please wait before trying again.' }, 'daily'],
  ['Gemini without a quota of the model', coded(429, zero, exhausted), 'daily'],
  ['Gemini, its user’s cap', coded(429, 'Your project has exceeded its monthly spending cap.'), 'quota'],
  ['Gemini, paid in advance', coded(429, 'Your prepayment credits are depleted.', exhausted), 'quota'],
  ['Workers AI', { errors: [{ code: 4006, message: 'used up your daily free allocation' }] }, 'quota'],
  ['fal', { detail: 'User is locked. Reason: Exhausted balance. Top up your balance.' }, 'quota'],
  ['Cohere', { message: 'You are using a Trial key, which is limited to 1000 API calls / month.' }, 'quota'],
  ['LiteLLM', coded('400', 'Over budget', { type: 'budget_exceeded' }), 'quota', 400],
  ['ElevenLabs, nothing left', eleven(0), 'quota', 401],
  ['ElevenLabs, less left than the call needs', eleven(12), 'too_large', 401],
  ['Anthropic', typed('rate_limit_error', 'Extra usage is required for long context requests.'), 'too_large'],
  ['OpenAI', coded('rate_limit_exceeded', 'Request too large for gpt-4o'), 'too_large'],
  ['a context', typed('invalid_request_error', "This model's maximum context length is 8192"), 'too_large'],
])('%s says for good: %j', (_, body, reason, status = 429) => {
  expect(throttleOf(model, { status, body })).toMatchObject({ kind: 'permanent', reason });
});

const tooFast = (message: string): object => typed('rate_limit_error', message);
test.each<[string, object, number | null]>([
  ['a limit below one', coded(429, 'limit: 0.5, retry in 3s', exhausted), 3_000],
  ['a trial key', { message: 'You are using a Trial key, limited to 10 API calls / minute.' }, null],
  ['advice', { message: 'Rate limit exceeded. A monthly plan has more.' }, null],
  ['tokens of a minute', { message: 'Too many tokens, please wait before trying again.' }, null],
  ['a quota of minutes', coded('quota_exceeded', 'Try again in 20s.'), 20_000],
  ['a length', tooFast('exceed your 50,000 input tokens per minute. Please reduce the prompt length'), null],
  ['a sum', tooFast('tokens per min (TPM): Limit 9000, Used 5999, Requested 3002. Try again in 20ms.'), 20],
  ['tokens', tooFast('Number of request tokens has exceeded your per-minute rate limit'), null],
  ['a frequency', tooFast('Please reduce the frequency of requests'), null],
  ['a plan', tooFast('You have sent too many requests. Upgrade your plan for a higher rate limit.'), null],
])('%s is waited for: %j', (_, body, waitMs) => {
  expect(throttleOf(model, { body })).toMatchObject({ kind: 'rate', waitMs });
});

test('a model that is being loaded, or busy, is overloaded', () => {
  const body = { error: 'Model gpt2 is currently loading', estimated_time: 20.5 };
  expect(throttleOf(model, { status: 503, body })).toEqual({ kind: 'overload', waitMs: 20_500 });
  const busy = { detail: { status: 'system_busy', message: 'We are experiencing heavy traffic' } };
  expect(throttleOf(model, { body: busy })).toMatchObject({ kind: 'overload' });
});

test('a used-up plan is asked again no earlier than it says', () => {
  const body = error('reached', { type: 'usage_limit_reached', resets_in_seconds: 9_000 });
  expect(throttleOf(model, { body })).toMatchObject({ kind: 'permanent', waitMs: 9_000_000 });
});

describe('a refusal because too many calls are in flight', () => {
  test.each([
    'Your account org-x<ak-x> request reached organization max concurrency: 3, please try again after 1 seconds',
    'High concurrency usage of this API, please reduce concurrency or contact customer service',
    'Number of concurrent connections has exceeded your rate limit.',
    'Too many simultaneous requests.',
    'You have reached the maximum parallel requests of your plan.',
    'Application is over its MailboxConcurrency limit.',
    'You have exceeded the limit of 10 simultaneous connections.',
    '您当前使用该API的并发数过高，请降低并发，或联系客服增加限额。',
  ])('says so: %s', (message) => {
    const body = JSON.stringify(error(message));
    const facts = { status: 429, fields: new Map(), body, callClass: 'default', nowMs: 0 };
    const undescribed = learnFrom('generic', facts, unknownDialect);
    for (const learned of [learn(model, { body }), learn('generic', { body }), undescribed])
      expect(learned).toMatchObject({ refusesConcurrency: true, throttle: { kind: 'rate', meter: null } });
  });

  const spoken = '[{"message":"ConcurrentRequests Limit exceeded.","errorCode":"REQUEST_LIMIT_EXCEEDED"}]';
  test.each<[Who, Response]>([
    [{ speaks: 'salesforce' }, { status: 403, body: spoken }],
    [{ speaks: 'xero' }, { fields: { 'x-rate-limit-problem': 'concurrent' } }],
    [{ speaks: 'stripe' }, { fields: { 'stripe-rate-limited-reason': 'global-concurrency' } }],
  ])('of %j says so as well', (who, refusal) => expect(learn(who, refusal).refusesConcurrency).toBe(true));

  test.each<Response>([
    { body: error('Rate limit reached for requests per min (RPM): Limit 3, Used 3, Requested 1.') },
    { body: error('Too many requests. See https://docs.example.com/limits/concurrency for the limits.') },
    { status: 200, body: { content: 'concurrency' } },
  ])('is none of another limit, and no success: %j', (response) => {
    expect(learn(model, response)).not.toHaveProperty('refusesConcurrency');
  });
});

const members = (type: unknown, code: unknown) => ({ type, code });
const quota = members('insufficient_quota', 'insufficient_quota');
const mixed = members('Insufficient_Quota', 'INSUFFICIENT_QUOTA');
const lower = members('resource_exhausted', 'throttlingexception');
test.each([
  [quota, quota],
  [members('insufficient_quota', 'a new one'), members('insufficient_quota', null)],
  [members('RESOURCE_EXHAUSTED', 429), members('RESOURCE_EXHAUSTED', 429)],
  [members(undefined, '402'), members(null, '402')],
  [members('billing_error', undefined), members('billing_error', null)],
  [mixed, mixed],
  [lower, lower],
  [members('to\u212aens', ' tokens'), null],
  [members('INSUFFICIENT_QUOTA_', 'INSUFFICIENT QUOTA'), null],
  [members('constructor', 'toString'), null],
  [members('see http://evil.example', 1e9), null],
  [members(['tokens'], { toString: () => 'tokens' }), null],
  [members(null, 200), null],
])('of an error %j clients read %j', (error, expected) =>
  expect(providerError(error.type, error.code)).toEqual(expected),
);

test('whatever an upstream says, only known words leave', () => {
  const known = fc.constantFrom('tokens', 'TOKENS', 'to\u212aens', 429, '429', '1113');
  const value = fc.oneof(fc.string(), fc.integer(), fc.anything(), known);
  fc.assert(
    fc.property(value, value, (type, code) => {
      const error = providerError(type, code);
      for (const word of [error?.type ?? '-', error?.code ?? '-']) expect(String(word)).toMatch(/^[\w.-]+$/);
    }),
  );
});
