/** Refusals of a language model or a shop that an operator describes: they go before what is known of the kind. */
import { expect, test } from '@jest/globals';
import type { UpstreamKind } from '../../../src/call.ts';
import { dialectOf, type SpeaksInput } from '../../../src/config/speaks.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const speaks: SpeaksInput = {
  permanentBy: [
    { status: 429, body: 'monthly budget of this key' },
    { status: 400, body: 'not for this model', scope: 'call' },
  ],
  throttledBy: [{ status: 403, body: 'warming up', waitSeconds: 4, scope: 'credential' }],
  waitIn: [{ body: '/error/again_in', as: 'seconds' }],
};

function read(
  kind: UpstreamKind,
  { status = 429, body, fields = {} }: { status?: number; body: unknown; fields?: Record<string, string> },
) {
  const facts = { status, fields: new Map(Object.entries(fields)), callClass: 'default', nowMs: 0 };
  return learnFrom(kind, { ...facts, body: JSON.stringify(body) }, dialectOf(speaks).dialect);
}

const error = (message: string, more: object = {}): object => ({
  error: { message, type: 'rate_limit_error', ...more },
});

test.each(['language-model', 'commerce'] as const)(
  '%s: a refusal for good that its kind takes for a wait',
  (kind) => {
    const { throttle } = read(kind, { body: error('The monthly budget of this key is used up.') });
    expect(throttle).toMatchObject({ kind: 'permanent', reason: 'quota' });
  },
);

test('a refusal of one call, and one of the whole credential', () => {
  expect(read('language-model', { status: 400, body: error('Not for this model.') }).throttle).toMatchObject({
    kind: 'permanent',
    scope: 'call',
  });
  expect(read('language-model', { status: 403, body: error('We are warming up.') }).throttle).toEqual({
    kind: 'rate',
    waitMs: 4_000,
    meter: null,
    scope: 'credential',
  });
});

test('the wait of a refusal that its kind knows stands where the operator says', () => {
  const body = error('Slow down.', { again_in: 17 });
  expect(read('language-model', { body }).throttle).toMatchObject({ kind: 'rate', waitMs: 17_000 });
});

test('all else is as its kind has it', () => {
  const fields = {
    'x-ratelimit-limit-requests': '500',
    'x-ratelimit-remaining-requests': '499',
    'retry-after': '3',
  };
  const { throttle, meters } = read('language-model', { body: error('Rate limit reached.'), fields });
  expect(throttle).toMatchObject({ kind: 'rate', waitMs: 3_000 });
  expect(meters.map(({ limit }) => limit)).toEqual([500]);
  const spent = { error: { code: 'insufficient_quota', message: 'You exceeded your current quota.' } };
  expect(read('language-model', { body: spent }).throttle).toMatchObject({
    kind: 'permanent',
    reason: 'quota',
  });
  expect(read('language-model', { status: 401, body: {} }).refusesCredential).toBe(true);
});
