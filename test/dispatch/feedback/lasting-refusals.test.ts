/** Refusals with 429 or 403 that no wait of a call cures, in the words of each provider, and those like them that a wait does cure. */
import { expect, test } from '@jest/globals';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const nowMs = Date.UTC(2026, 10, 26);
const throttleOf = (body: unknown, status = 429, fields: Record<string, string> = {}) =>
  learnFrom('language-model', {
    status,
    fields: new Map(Object.entries(fields)),
    body: JSON.stringify(body),
    callClass: 'default',
    nowMs,
  }).throttle;

const error = (members: object): object => ({ error: members });
const zeroLimit =
  'You exceeded your current quota. * Quota exceeded for metric: generate_content_free_tier_input_token_count, limit: 0, model: gemini-3-pro\nPlease retry in 3.5s.';

test.each<readonly [string, object, string, number?]>([
  [
    'Moonshot',
    error({ type: 'exceeded_current_quota_error', message: 'suspended due to insufficient balance' }),
    'quota',
  ],
  [
    'Zhipu, no balance',
    error({ code: '1113', message: 'Insufficient balance or no resource package.' }),
    'quota',
  ],
  ['Zhipu, five hours', error({ code: '1308', message: 'Usage limit reached for 5 hour.' }), 'quota'],
  [
    'a subscription',
    error({ type: 'usage_limit_reached', message: 'The usage limit has been reached' }),
    'quota',
  ],
  [
    'Copilot',
    error({ code: 'quota_exceeded', message: 'You have exceeded your monthly allowance' }),
    'quota',
  ],
  [
    'Ark, overdue',
    error({ code: 'AccountOverdueError', type: 'Forbidden', message: 'overdue' }),
    'quota',
    403,
  ],
  [
    'Ark, a paused model',
    error({ code: 'SetLimitExceeded', type: 'TooManyRequests', message: 'paused' }),
    'daily',
  ],
  ['Bedrock', { message: 'Too many tokens per day, please wait before trying again.' }, 'daily'],
  [
    'Gemini without a quota of the model',
    error({ code: 429, status: 'RESOURCE_EXHAUSTED', message: zeroLimit }),
    'daily',
  ],
  [
    'Cloudflare Workers AI',
    { errors: [{ code: 4006, message: 'you have used up your daily free allocation of 10,000 neurons' }] },
    'quota',
  ],
  ['Zhipu, a day', error({ code: '1304', message: '该API已达当日调用次数限额' }), 'daily'],
  [
    'Gemini, the customer’s own cap',
    error({ code: 429, message: 'Your project has exceeded its monthly spending cap. Go to AI Studio.' }),
    'quota',
  ],
  [
    'Gemini, paid in advance',
    error({ code: 429, status: 'RESOURCE_EXHAUSTED', message: 'Your prepayment credits are depleted.' }),
    'quota',
  ],
  [
    'fal',
    { detail: 'User is locked. Reason: Exhausted balance. Top up your balance at fal.ai/dashboard/billing.' },
    'quota',
  ],
  [
    'Cohere, a trial key',
    { message: 'You are using a Trial key, which is limited to 1000 API calls / month.' },
    'quota',
  ],
  [
    'LiteLLM, in a 400',
    error({ type: 'budget_exceeded', code: '400', message: 'Over budget' }),
    'quota',
    400,
  ],
  [
    'Ark, a spent trial',
    error({
      code: 'QuotaExceeded',
      message: 'Your account has exhausted its free trial quota for the model',
    }),
    'quota',
  ],
  [
    'ElevenLabs, nothing left',
    { detail: { status: 'quota_exceeded', message: 'You have 0 credits remaining, while 36 are required.' } },
    'quota',
    401,
  ],
  [
    'ElevenLabs, less left than the call needs',
    {
      detail: { status: 'quota_exceeded', message: 'You have 12 credits remaining, while 36 are required.' },
    },
    'too_large',
    401,
  ],
])('%s says for good: %j', (_, body, reason, status = 429) => {
  expect(throttleOf(body, status)).toMatchObject({ kind: 'permanent', reason });
});

test.each<readonly [string, object, number | null]>([
  [
    'a limit below one',
    error({ code: 429, status: 'RESOURCE_EXHAUSTED', message: 'limit: 0.5, retry in 3s' }),
    3000,
  ],
  ['a trial key', { message: 'You are using a Trial key, limited to 10 API calls / minute.' }, null],
  ['advice', { message: 'Rate limit exceeded. A monthly plan has more.' }, null],
  ['tokens of a minute', { message: 'Too many tokens, please wait before trying again.' }, null],
  ['a quota of minutes', error({ code: 'quota_exceeded', message: 'Try again in 20s.' }), 20_000],
])('%s is waited for: %j', (_, body, waitMs) => {
  expect(throttleOf(body)).toMatchObject({ kind: 'rate', waitMs });
});

test('a model that is being loaded is asked again when it says', () => {
  const body = { error: 'Model gpt2 is currently loading', estimated_time: 20.5 };
  expect(throttleOf(body, 503)).toMatchObject({ kind: 'overload', waitMs: 20_500 });
  const busy = { detail: { status: 'system_busy', message: 'We are experiencing heavy traffic' } };
  expect(throttleOf(busy)).toMatchObject({ kind: 'overload' });
});

test('a used-up plan is asked again no earlier than it says', () => {
  const body = error({ type: 'usage_limit_reached', message: 'reached', resets_in_seconds: 9000 });
  expect(throttleOf(body)).toMatchObject({ kind: 'permanent', waitMs: 9_000_000 });
});
