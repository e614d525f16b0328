import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { providerError } from '../../../src/dispatch/feedback/refusal.policy.ts';

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
