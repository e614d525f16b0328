/** Providers that count input and output tokens apart: each has a meter of its own. */
import { describe, expect, test } from '@jest/globals';
import type { Feedback } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const learn = (status: number, fields: Record<string, string>, body: unknown = null): Feedback =>
  learnFrom('language-model', {
    status,
    fields: new Map(Object.entries(fields)),
    body: body === null ? null : JSON.stringify(body),
    callClass: 'default',
    nowMs: Date.UTC(2026, 0, 1),
  });

const anthropic = (name: string, limit: number, remaining: number): Record<string, string> => ({
  [`anthropic-ratelimit-${name}-limit`]: String(limit),
  [`anthropic-ratelimit-${name}-remaining`]: String(remaining),
  [`anthropic-ratelimit-${name}-reset`]: '2026-01-01T00:00:06Z',
});
const limits = (reported: Feedback): object =>
  Object.fromEntries(reported.meters.map((one) => [one.meter, one.limit]));

describe('fields of Anthropic', () => {
  const apart = { ...anthropic('input-tokens', 50_000, 45_000), ...anthropic('output-tokens', 8_000, 7_000) };

  test('fill a meter of input and one of output tokens', () => {
    const { meters } = learn(200, apart);
    expect(meters).toMatchObject([
      { meter: 'input_tokens', limit: 50_000, windowMs: 60_000 },
      { meter: 'output_tokens', limit: 8_000, windowMs: 60_000 },
    ]);
    for (const { level } of meters) expect(level).not.toBeNull();
  });

  test.each([50_000, 8_000, 58_000])('the plain limit of %i only repeats them', (limit) => {
    expect(limits(learn(200, { ...apart, ...anthropic('tokens', limit, 1_000) }))).toEqual({
      input_tokens: 50_000,
      output_tokens: 8_000,
    });
  });

  test('a plain limit of its own, such as that of a workspace, counts all tokens', () => {
    expect(limits(learn(200, { ...apart, ...anthropic('tokens', 20_000, 1_000) }))).toEqual({
      tokens: 20_000,
      input_tokens: 50_000,
      output_tokens: 8_000,
    });
  });
});

test('other fields that name input and output tokens fill the same meters', () => {
  const of = (name: string, limit: number): Record<string, string> => ({
    [`x-ratelimit-limit-${name}`]: String(limit),
    [`x-ratelimit-remaining-${name}`]: String(limit - 10),
  });
  expect(limits(learn(200, { ...of('input-tokens', 9_000), ...of('output-tokens', 900) }))).toEqual({
    input_tokens: 9_000,
    output_tokens: 900,
  });
});

test.each([
  ['input tokens per minute (ITPM)', 'input_tokens'],
  ['output tokens per minute (OTPM)', 'output_tokens'],
])('a refusal on %s says what it asked of that meter', (metric, meter) => {
  const message = `Rate limit reached for model \`m\` in organization \`org_1\` on ${metric}: Limit 9000, Used 8500, Requested 821. Please try again in 2.5s.`;
  const reported = learn(429, {}, { error: { message, type: 'tokens', code: 'rate_limit_exceeded' } });
  expect(reported).toMatchObject({
    meters: [{ meter, limit: 9_000 }],
    throttle: { kind: 'rate', waitMs: 2_500, meter },
    requestedTokens: 821,
  });
});
