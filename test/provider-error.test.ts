import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { providerError } from '../src/provider-error.policy.ts';

test.each([
  [
    { type: 'insufficient_quota', code: 'insufficient_quota' },
    { type: 'insufficient_quota', code: 'insufficient_quota' },
  ],
  [
    { type: 'insufficient_quota', code: 'a new one' },
    { type: 'insufficient_quota', code: null },
  ],
  [
    { type: 'RESOURCE_EXHAUSTED', code: 429 },
    { type: 'RESOURCE_EXHAUSTED', code: 429 },
  ],
  [
    { type: undefined, code: '402' },
    { type: null, code: '402' },
  ],
  [
    { type: 'billing_error', code: undefined },
    { type: 'billing_error', code: null },
  ],
  [
    { type: 'Insufficient_Quota', code: 'INSUFFICIENT_QUOTA' },
    { type: 'Insufficient_Quota', code: 'INSUFFICIENT_QUOTA' },
  ],
  [
    { type: 'resource_exhausted', code: 'throttlingexception' },
    { type: 'resource_exhausted', code: 'throttlingexception' },
  ],
  [{ type: 'to\u212aens', code: ' tokens' }, null],
  [{ type: 'INSUFFICIENT_QUOTA_', code: 'INSUFFICIENT QUOTA' }, null],
  [{ type: 'constructor', code: 'toString' }, null],
  [{ type: 'see http://evil.example', code: 1e9 }, null],
  [{ type: ['tokens'], code: { toString: () => 'tokens' } }, null],
  [{ type: null, code: 200 }, null],
])('of an error %j clients read %j', (members, expected) => {
  expect(providerError(members)).toEqual(expected);
});

test('whatever an upstream says, only known words leave', () => {
  const value = fc.oneof(
    fc.string(),
    fc.integer(),
    fc.anything(),
    fc.constantFrom('tokens', 'TOKENS', 'to\u212aens', 429, '429', '1113'),
  );
  fc.assert(
    fc.property(value, value, (type, code) => {
      const error = providerError({ type, code });
      for (const word of [error?.type ?? '-', error?.code ?? '-']) expect(String(word)).toMatch(/^[\w.-]+$/);
    }),
  );
});
