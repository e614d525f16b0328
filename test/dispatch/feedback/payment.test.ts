/** A 402 of a spent account, of a call that asks for too much, and of money that is bound for a moment; tables of all three. */
import { describe, expect, test } from '@jest/globals';
import type { Throttle } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

function throttleOf(status: number, body: unknown, fields: Record<string, string> = {}): Throttle | null {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return learnFrom('language-model', {
    status,
    fields: new Map(Object.entries(fields)),
    body: text,
    callClass: 'default',
    nowMs: Date.UTC(2026, 10, 25),
  }).throttle;
}

/** The same sentence in the envelopes of several providers. */
const envelopes = (message: string): readonly unknown[] => [
  { error: { message, code: 402 } },
  { error: { message, type: 'payment_required', code: '402' } },
  { type: 'error', error: { type: 'invalid_request_error', message } },
  { error: message },
  { message },
  { detail: message },
  { errors: [{ message }] },
  message,
];

describe('a 402 that lies in the call itself concerns no other:', () => {
  test.each([
    'This request requires more credits, or fewer max_tokens. You requested up to 64000 tokens, but can only afford 3500.',
    'This request requires more credits, or fewer max_tokens',
    'You requested up to 8192 tokens, but can only afford 120. To increase, visit https://openrouter.ai/settings/credits',
    'Prompt tokens limit exceeded: 50000 > 20000. To increase, visit https://openrouter.ai/settings/credits and upgrade to a paid account',
    'Extra usage is required for long context requests.',
    'Usage credits are required for long context requests',
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
    'Requesting 4 images, your credits allow 2',
    'You asked for 10 seconds of video; only 4 remain',
    'Your balance covers 100 tokens; 2048 were requested',
    'Your balance of $1.50 does not cover the cost of this request',
    'Your balance is too low for this request',
    'Insufficient credits to run the requested model',
    'Not enough credits for the requested number of images (4). Lower `n` and try again.',
    'Insufficient credits: use fewer images',
    'Insufficient balance, lower n',
    'Insufficient balance: try a smaller image or a lower resolution',
    'Not enough credits. Please choose a shorter duration.',
    'Not enough credits. Use a cheaper model.',
    'Not enough credits. Try a less expensive model or split the prompt.',
    'Max tokens too high for the remaining balance; reduce max_tokens to 1000.',
    'max_tokens is too large for your remaining credits',
    'Estimated cost ($2.10) exceeds available balance ($1.05).',
    'The requested amount of tokens is more than your balance covers.',
    'This generation would cost 40 credits but only 12 are available',
    'Insufficient credits: this image requires 12 credits, you have 3.',
  ])('%s', (message) => {
    for (const body of envelopes(message)) {
      expect([body, throttleOf(402, body)]).toEqual([
        body,
        { kind: 'permanent', reason: 'too_large', waitMs: null },
      ]);
    }
  });

  test.each(['context_length_exceeded', 'request_too_large', 'prompt_too_long', 'max_tokens_exceeded'])(
    'by its code %s',
    (code) => {
      for (const status of [402, 429]) {
        expect(throttleOf(status, { error: { message: 'no', code } })).toMatchObject({ reason: 'too_large' });
      }
    },
  );
});

describe('a 402 of a spent account concerns everybody who uses it:', () => {
  test.each([
    'Insufficient Balance',
    'Insufficient credits',
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
    'Your trial has ended',
    'You can only afford 0 tokens',
    'This request requires credits. Your balance is 0.00',
    'You have 0 credits remaining, 5 credits are required for this request',
    '余额不足或无可用资源包,请充值。',
    'Top up your account',
    'Reached usage limit of $20. Increase it in settings',
    'You have reached your usage limit',
    'Usage cap of 20 USD reached',
    'Monthly limit reached',
    'This key has exceeded its monthly spending limit.',
    'Your balance is 0',
    'Balance: $0.00. You need 5 more credits to run this model.',
    'Requested 2048 output tokens; your balance covers 0.',
    'The account balance is negative (-$0.02). This request costs $0.10.',
    'Your balance is -3.2 credits, this request requires 5 credits and you have none left',
    'Your credits are exhausted. This request requires 12 credits.',
    'You have run out of credits, reduce max_tokens or upgrade your plan.',
    'No credits remaining: use a cheaper model.',
    'No remaining balance; lower `n`',
    'You have $2 left; a minimum balance of $5 is required',
    'Insufficient balance, please reduce the number of requests or recharge',
    'Insufficient credits. Lower your spending or add more.',
    'You need more credits to continue',
    'You need 5 more credits to make requests',
    'Your total usage exceeds your credit balance',
    'Your spending limit blocks further requests. Raise the limit to use a model.',
  ])('%s', (message) => {
    for (const body of envelopes(message)) {
      expect([body, throttleOf(402, body)]).toEqual([
        body,
        { kind: 'permanent', reason: 'quota', waitMs: null },
      ]);
    }
  });

  test.each(['', '{}', '{"error":{}}', '{"error":{"code":402}}', '{"error":{"message":""}}'])(
    'without a word: %j',
    (body) => {
      expect(throttleOf(402, body)).toMatchObject({ reason: 'quota' });
    },
  );

  test.each(['insufficient_quota', 'billing_error', 'billing_hard_limit_reached'])(
    'by its code %s',
    (type) => {
      expect(throttleOf(402, { error: { message: 'no', type } })).toMatchObject({ reason: 'quota' });
    },
  );
});

test.each(['Nope.', 'Please contact us', '<html><h1>402</h1></html>', 'E-4711'])(
  'a 402 in unknown words is unclear: %s',
  (message) => {
    for (const body of envelopes(message)) {
      expect(throttleOf(402, body)).toEqual({ kind: 'permanent', reason: 'unclear', waitMs: null });
    }
  },
);

describe('a 402 that ends by itself is waited for:', () => {
  const inFlight = {
    error: {
      code: 402,
      message: 'Spending budget reached',
      metadata: { limit_source: 'openrouter_in_flight_budget' },
    },
  };

  test('as its Retry-After says, whatever its words', () => {
    for (const message of ['Insufficient credits', 'Nope.', 'In-flight spending budget reached', '']) {
      expect(throttleOf(402, { error: { message, code: 402 } }, { 'retry-after': '2' })).toMatchObject({
        kind: 'rate',
        waitMs: 2_000,
      });
    }
  });

  test('as its sentence says', () => {
    const body = { error: { message: 'Budget used up. Please try again in 20s.', code: 402 } };
    expect(throttleOf(402, body)).toMatchObject({ kind: 'rate', waitMs: 20_000 });
  });

  test('with a back-off, where calls under way have bound the money', () => {
    for (const body of [inFlight, { error: { message: 'In-flight spending budget reached' } }]) {
      expect(throttleOf(402, body)).toEqual({ kind: 'rate', waitMs: null, meter: null });
    }
  });

  test('but not by a call that asks for too much', () => {
    const body = { error: { message: 'can only afford 3500' } };
    expect(throttleOf(402, body, { 'retry-after': '2' })).toMatchObject({ reason: 'too_large' });
  });
});

describe('a 429', () => {
  test.each([
    {
      type: 'error',
      error: { type: 'rate_limit_error', message: 'Extra usage is required for long context requests.' },
    },
    { error: { message: 'Request too large for gpt-4o', code: 'rate_limit_exceeded' } },
    {
      error: { message: "This model's maximum context length is 8192 tokens", type: 'invalid_request_error' },
    },
  ])('that no waiting cures concerns its call alone: %j', (body) => {
    expect(throttleOf(429, body)).toMatchObject({ kind: 'permanent', reason: 'too_large' });
  });

  test.each([
    "This request would exceed your organization's rate limit of 50,000 input tokens per minute. Please reduce the prompt length or the maximum tokens requested, or try again later.",
    'Rate limit reached for gpt-4o in organization org-A on tokens per min (TPM): Limit 30000, Used 22999, Requested 7002. Please try again in 20ms.',
    'Number of request tokens has exceeded your per-minute rate limit',
    'Please reduce the frequency of requests',
    'You have sent too many requests. Upgrade your plan for a higher rate limit.',
  ])('of a limiter is a limiter’s: %s', (message) => {
    expect(throttleOf(429, { error: { type: 'rate_limit_error', message } })).toMatchObject({ kind: 'rate' });
  });
});

test.each([400, 404, 413, 422, 500])('a %i about the call is no throttle', (status) => {
  const message = "This model's maximum context length is 8192 tokens, reduce max_tokens";
  expect(throttleOf(status, { error: { message, code: 'context_length_exceeded' } })).toBeNull();
});
