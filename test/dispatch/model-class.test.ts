import { expect, test } from '@jest/globals';
import { describeCall } from '../../src/dispatch/estimate.policy.ts';
import { modelClass, tierOf } from '../../src/dispatch/model-call.policy.ts';

test.each([
  ['claude-opus-4-5', 'claude-opus-4.x'],
  ['claude-opus-4-8-20260501', 'claude-opus-4.x'],
  ['claude-opus-4-5-latest', 'claude-opus-4.x'],
  ['claude-opus-4-1', 'claude-opus-4-1'],
  ['claude-opus-4-20250514', 'claude-opus-4'],
  ['claude-opus-5', 'claude-opus-5'],
  ['claude-opus-5-5', 'claude-opus-5-5'],
  ['claude-sonnet-4-6', 'claude-sonnet-4.x'],
  ['claude-sonnet-4-5-20250929', 'claude-sonnet-4.x'],
  ['claude-sonnet-5', 'claude-sonnet-5'],
  ['claude-haiku-4-5-20251001', 'claude-haiku-4-5'],
  ['claude-opus-4-5x', 'claude-opus-4-5x'],
  ['anthropic.claude-opus-4-5-20251101-v1:0', 'anthropic.claude-opus-4-5-20251101-v1:0'],
  ['gpt-4o-2024-08-06', 'gpt-4o-2024-08-06'],
  ['', ''],
])('%s counts against the quota of %s', (model, expected) => {
  expect(modelClass(model)).toBe(expected);
});

test.each([
  [{ speed: 'fast' }, 'fast'],
  [{ service_tier: 'flex' }, 'flex'],
  [{ service_tier: 'priority' }, ''],
  [{ service_tier: 'auto' }, ''],
  [{ speed: 1, service_tier: {} }, ''],
])('the tier of %j with a quota of its own is "%s"', (body, tier) => {
  expect(tierOf(body)).toBe(tier);
  const described = describeCall('language-model', {
    method: 'POST',
    path: '/v1/messages',
    contentType: 'application/json',
    rawFields: [],
    body: Buffer.from(JSON.stringify({ model: 'm', ...body })),
  });
  expect(described).toMatchObject({ model: 'm', tier });
});
