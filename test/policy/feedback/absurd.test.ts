import { expect, test } from '@jest/globals';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const dayMs = 86_400_000;
const refusal = { status: 429, callClass: 'default', method: 'POST', path: '/', nowMs: 1_800_000_000_000 };
const message = 'Rate limit reached on tokens per min (TPM). Please try again in 99999999h.';

test.each([
  ['generic', { ratelimit: '"a";r=0;t=999999999999999' }, null],
  [
    'generic',
    { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '9999999999' },
    null,
  ],
  ['language-model', {}, JSON.stringify({ error: { code: 'rate_limit_exceeded', message } })],
] as const)('a wait of years told by a %s upstream is a day: %j', (kind, fields, body) => {
  const told = learnFrom(kind, { ...refusal, fields: new Map(Object.entries(fields)), body });
  expect(told.throttle?.waitMs).toBe(dayMs);
});
