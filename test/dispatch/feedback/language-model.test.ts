import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Feedback } from '../../../src/call.ts';
import { learnFrom, type ResponseFacts } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const now = Date.UTC(2026, 0, 1);
const facts = (status: number, fields: Record<string, string>, body: unknown = null): ResponseFacts => ({
  status,
  fields: new Map(Object.entries(fields)),
  body: body === null || typeof body === 'string' ? body : JSON.stringify(body),
  callClass: 'default',
  nowMs: now,
});
const learn = (status: number, fields: Record<string, string>, body: unknown = null): Feedback =>
  learnFrom('language-model', facts(status, fields, body));

const quota = (
  dimension: string,
  limit: number,
  remaining: number,
  reset: string,
): Record<string, string> => ({
  [`x-ratelimit-limit-${dimension}`]: String(limit),
  [`x-ratelimit-remaining-${dimension}`]: String(remaining),
  [`x-ratelimit-reset-${dimension}`]: reset,
});
const refusal = (code: string | null, type: string, message = ''): unknown => ({
  error: { code, type, message },
});

describe('a refusal of a language model that states no wait', () => {
  const spent = { ...quota('requests', 500, 0, '2.5s'), ...quota('tokens', 30_000, 29_990, '20ms') };
  const slow = refusal('rate_limit_exceeded', 'requests', 'Rate limit reached.');

  test('lasts until the reset of the limit of which nothing is left', () => {
    expect(learn(429, spent, slow).throttle).toMatchObject({ kind: 'rate', waitMs: 2_500 });
  });

  test('lasts as Retry-After or its sentence states, where one does', () => {
    expect(learn(429, { ...spent, 'retry-after': '1' }, slow).throttle).toMatchObject({ waitMs: 1_000 });
    const told = refusal('rate_limit_exceeded', 'requests', 'Please try again in 120ms.');
    expect(learn(429, spent, told).throttle).toMatchObject({ waitMs: 120 });
  });

  test('lasts an unknown time where something of every limit is left', () => {
    expect(learn(429, quota('tokens', 30_000, 554, '58.891s'), slow).throttle).toMatchObject({
      waitMs: null,
    });
  });
});

describe('the limit fields of a language model', () => {
  test('state the daily meter when the reset of a request limit fits a day', () => {
    expect(learn(200, quota('requests', 200, 199, '7m12s')).meters).toMatchObject([
      { meter: 'requests_day', limit: 200, windowMs: 86_400_000 },
    ]);
  });

  test('state the daily meter also when a second call comes during the drain of the first, because remaining is a floor', () => {
    expect(learn(200, quota('requests', 200, 198, '11m32.334s')).meters).toMatchObject([
      { meter: 'requests_day', windowMs: 86_400_000 },
    ]);
  });

  test('give a level that keeps the fraction shown by the reset and contains the true one', () => {
    // Two calls 64 ms apart on 500 per minute: used is 2 − 64 × 500/60000.
    const [report] = learn(200, quota('requests', 500, 498, '176ms')).meters;
    const truth = 2 - (64 * 500) / 60_000;
    expect(report?.level?.lowest).toBeLessThanOrEqual(truth);
    expect(report?.level?.highest).toBeGreaterThanOrEqual(truth);
    expect((report?.level?.highest ?? 9) - (report?.level?.lowest ?? 0)).toBeLessThan(0.02);
  });

  test('give, without a usable reset, the level one unit below what remaining says, and no window', () => {
    expect(learn(200, quota('tokens', 30_000, 29_990, 'soon')).meters).toEqual([
      { meter: 'tokens', limit: 30_000, windowMs: null, level: { lowest: 9, highest: 10 } },
    ]);
  });

  test('give no window when the reset fits no known length', () => {
    expect(learn(200, quota('tokens', 18_000, 17_997, '7.66s')).meters).toMatchObject([{ windowMs: null }]);
  });

  test.each([
    [60, 59, '60'],
    [60, 59, '1m0s'],
    [500, 492, '57'],
    [1_000, 999, '59'],
    [5_000, 4_996, '58s'],
  ])(
    'give no longer window than a minute, where %i and %i left may fall to nothing in %s',
    (limit, remaining, reset) => {
      const { meters } = learn(200, quota('requests', limit, remaining, reset));
      expect(meters).toMatchObject([{ meter: 'requests', windowMs: null }]);
    },
  );

  test('give a day where a reset within a minute is exactly that of its first call', () => {
    expect(learn(200, quota('requests', 14_400, 14_399, '6s')).meters).toMatchObject([
      { meter: 'requests_day', windowMs: 86_400_000 },
    ]);
  });

  test.each([
    { ratelimit: '"api";r=4;t=20', 'ratelimit-policy': '"api";q=10;w=60' },
    { 'ratelimit-limit': '10, 10;w=60', 'ratelimit-remaining': '4', 'ratelimit-reset': '20' },
    { 'x-ratelimit-limit-minute': '10', 'x-ratelimit-remaining-minute': '4' },
  ])('of no provider are read as of any API: %j', (fields) => {
    expect(learn(200, fields).meters).toMatchObject([
      { meter: 'requests', limit: 10, windowMs: 60_000, level: { highest: 6 } },
    ]);
  });

  test('take the stated renewal period rather than the window that the reset suggests', () => {
    const fields = { ...quota('requests', 10, 9, '1'), 'x-ratelimit-renewalperiod-requests': '10' };
    expect(learn(200, fields).meters).toMatchObject([{ meter: 'requests', windowMs: 10_000 }]);
  });

  test('are ignored when their reset contradicts their remaining', () => {
    const fields = { ...quota('tokens', 5000, 0, '0'), 'x-ratelimit-renewalperiod-tokens': '60' };
    expect(learn(429, fields).meters).toMatchObject([{ level: { lowest: 4999, highest: 5000 } }]);
  });

  test('give the tighter one of two limits for one meter', () => {
    const fields = {
      ...quota('tokens', 30_000, 29_000, '2s'),
      ...quota('project-tokens', 5000, 4000, '12s'),
    };
    expect(learn(200, fields).meters).toMatchObject([{ meter: 'tokens', limit: 5000 }]);
  });

  test('give a window and a level that a real bucket can have, whatever they say', () => {
    const bucket = fc.record({
      limit: fc.integer({ min: 10, max: 100_000 }),
      windowMs: fc.constantFrom(1000, 10_000, 60_000, 3_600_000, 86_400_000),
      share: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(bucket, ({ limit, windowMs, share }) => {
        const used = Math.max(1, share * limit);
        const resetMs = Math.trunc((used * windowMs) / limit);
        const [report] = learn(200, quota('tokens', limit, Math.floor(limit - used), `${resetMs}ms`)).meters;
        expect([null, windowMs]).toContain(report?.windowMs);
        expect(report?.level?.lowest).toBeLessThanOrEqual(used + 1e-6);
        expect(report?.level?.highest).toBeGreaterThanOrEqual(used - 1e-6);
      }),
      {
        numRuns: 1000,
        // What is left is a round number by chance.
        examples: [
          [{ limit: 1_234, windowMs: 10_000, share: 234.5 / 1_234 }],
          [{ limit: 90_000, windowMs: 60_000, share: 0.5 }],
        ],
      },
    );
  });
});

describe('the verdict on a refusal', () => {
  test.each([
    'insufficient_quota',
    'credit_balance_exhausted',
    'organization_spend_limit_exceeded',
    'project_spend_limit_exceeded',
    'organization_usage_limit_exceeded',
  ])('is permanent for the code %s', (code) => {
    expect(learn(429, {}, refusal(code, 'insufficient_quota')).throttle).toMatchObject({
      kind: 'permanent',
      reason: 'quota',
    });
  });

  test('follows the type where the code is unknown', () => {
    expect(learn(429, {}, refusal(null, 'insufficient_quota')).throttle).toMatchObject({ reason: 'quota' });
  });

  test('follows the code although a detail is unknown', () => {
    const error = { code: 'insufficient_quota', type: 'x', details: [{ reason: 'SOMETHING_NEW' }] };
    expect(learn(429, {}, { error }).throttle).toMatchObject({ reason: 'quota' });
  });

  test('ignores wording about billing', () => {
    const body = refusal('rate_limit_exceeded', 'tokens', 'Please try again in 2s. Visit /settings/billing');
    expect(learn(429, {}, body).throttle).toMatchObject({ kind: 'rate', waitMs: 2000 });
  });

  test('is no throttle for remaining 0 on a success', () => {
    expect(learn(200, quota('requests', 500, 0, '60s')).throttle).toBeNull();
  });

  test.each([400, 401, 403, 404, 500, 502])('is no throttle for status %d by itself', (status) => {
    expect(learn(status, {}, refusal('model_not_found', 'invalid_request_error')).throttle).toBeNull();
  });

  test.each([
    [503, refusal('server_is_overloaded', 'service_unavailable_error')],
    [429, refusal('slow_down', 'rate_limit_error')],
    [529, { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }],
    [503, null],
  ])('is overload: %d %j', (status, body) => {
    expect(learn(status, { 'retry-after': '3' }, body).throttle).toEqual({ kind: 'overload', waitMs: 3000 });
  });

  test('follows the code rather than the status: 503 with a rate code is a rate refusal', () => {
    expect(learn(503, {}, refusal('rate_limit_exceeded', 'requests')).throttle).toMatchObject({
      kind: 'rate',
    });
  });

  test('is, for 429 with an HTML body, a refusal without a hint', () => {
    expect(learn(429, {}, '<html>').throttle).toEqual({ kind: 'rate', waitMs: null, meter: null });
  });

  test('is "too large" for a request above the limit, even when the text does not say so', () => {
    const message =
      'Rate limit reached for x in organization o on tokens per min (TPM): Limit 10, Requested 11.';
    expect(learn(429, {}, refusal('rate_limit_exceeded', 'tokens', message)).throttle).toMatchObject({
      reason: 'too_large',
    });
  });
});

describe('the wait stated by a refusal', () => {
  const body = refusal('rate_limit_exceeded', 'tokens', 'Please try again in 1m8.256s. Need more?');

  test('comes from the fields rather than from the text', () => {
    expect(learn(429, { 'retry-after-ms': '70', 'retry-after': '1' }, body).throttle).toMatchObject({
      waitMs: 70,
    });
    expect(learn(429, { 'retry-after': '1' }, body).throttle).toMatchObject({ waitMs: 1000 });
    expect(learn(429, {}, body).throttle).toMatchObject({ waitMs: 68_256 });
  });

  test('is the renewal period, or the seconds of the text, when the reset beside remaining 0 is zero', () => {
    const trap = {
      ...quota('tokens', 5000, 0, '0'),
      'x-ratelimit-renewalperiod-tokens': '60',
      'retry-after': '1',
      'retry-after-ms': '0',
    };
    expect(learn(429, trap).throttle).toMatchObject({ waitMs: 60_000 });
    const text = { error: { code: '429', message: 'Please retry after 17 seconds. More.' } };
    expect(learn(429, trap, text).throttle).toMatchObject({ waitMs: 17_000 });
  });

  test('is unknown for a used-up day, whatever else the response states', () => {
    const details = [{ violations: [{ quotaId: 'GenerateRequestsPerDay' }] }, { retryDelay: '31s' }];
    const error = { code: 429, status: 'RESOURCE_EXHAUSTED', details };
    expect(learn(429, { 'retry-after': '31' }, { error }).throttle).toEqual({
      kind: 'permanent',
      reason: 'daily',
      waitMs: null,
    });
  });

  test('is understood in the older sentence', () => {
    const text =
      'Rate limit reached for x in organization o on requests per min. Limit: 3 / min. Please try again in 20s.';
    const reported = learn(429, {}, refusal('rate_limit_exceeded', 'requests', text));
    expect(reported.throttle).toEqual({ kind: 'rate', waitMs: 20_000, meter: 'requests' });
    expect(reported.meters).toEqual([{ meter: 'requests', limit: 3, windowMs: 60_000, level: null }]);
  });
});

describe('the sentence of a refusal', () => {
  const sentence = (limit: number, used: number): unknown =>
    refusal(
      'rate_limit_exceeded',
      'tokens',
      `Rate limit reached for gpt-image-2 (for limit gpt-image) in project proj_J organization org-l on tokens per min (TPM): Limit ${limit}, Used ${used}, Requested 821. Please try again in 1.146s.`,
    );

  test('adds a limit that no field names', () => {
    expect(learn(429, {}, sentence(50_000, 49_949)).meters).toEqual([
      { meter: 'tokens', limit: 50_000, windowMs: 60_000, level: { lowest: 49_948, highest: 49_949 } },
    ]);
  });

  test('replaces the limit of the fields when that of the project is tighter', () => {
    const fields = quota('tokens', 30_000, 554, '58.891s');
    expect(learn(429, fields, sentence(20_000, 19_900)).meters).toMatchObject([{ limit: 20_000 }]);
    expect(learn(429, fields, sentence(50_000, 49_900)).meters).toMatchObject([{ limit: 30_000 }]);
  });

  test('states whose quota it is, and what the call was charged', () => {
    const reported = learn(429, {}, sentence(50_000, 49_949));
    expect(reported.scope).toEqual({ organization: 'org-l', project: 'proj_J', family: 'gpt-image' });
    expect(reported.requestedTokens).toBe(821);
  });
});

test('feedback of a language model never throws and never gives an impossible number', () => {
  const value = fc.oneof(
    fc.string(),
    fc.constantFrom('-1', '0', '1e999', '99999999999999', '1h', '2020-01-01T00:00:00Z', '5, 6'),
  );
  const name = fc.constantFrom(
    'x-ratelimit-limit-tokens',
    'x-ratelimit-remaining-tokens',
    'x-ratelimit-reset-tokens',
    'retry-after',
    'date',
    'anthropic-ratelimit-tokens-limit',
    'anthropic-ratelimit-tokens-reset',
    'ratelimit',
    'ratelimit-policy',
    'x-ratelimit-limit',
    'x-ratelimit-remaining',
    'x-ratelimit-reset',
    'x-shop-api-call-limit',
  );
  const kinds = fc.constantFrom('language-model', 'commerce', 'generic');
  const classes = fc.constantFrom('default', 'rest', 'graphql');
  const bodies = fc.oneof(
    fc.string(),
    fc.json(),
    fc.json().map((text) => `{"error":${text},"errors":[${text}],"extensions":${text}}`),
  );
  const status = fc.constantFrom(200, 402, 429, 503, 529);
  fc.assert(
    fc.property(
      kinds,
      classes,
      status,
      fc.dictionary(name, value),
      bodies,
      (kind, callClass, code, fields, body) => {
        const reported = learnFrom(kind, { ...facts(code, fields, body), callClass });
        for (const { limit, windowMs, level } of reported.meters) {
          expect(limit).toBeGreaterThan(0);
          expect(windowMs === null || windowMs > 0).toBe(true);
          if (level !== null) expect(level.lowest >= 0 && level.lowest <= level.highest).toBe(true);
        }
        const waitMs = reported.throttle?.waitMs ?? null;
        expect(waitMs === null || (Number.isFinite(waitMs) && waitMs >= 0)).toBe(true);
      },
    ),
    { numRuns: 1000 },
  );
});
