import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Feedback } from '../../../src/call.ts';
import { learnFrom, type AnswerFacts } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const now = Date.UTC(2026, 0, 1);
const facts = (status: number, fields: Record<string, string>, body: unknown = null): AnswerFacts => ({
  status,
  fields: new Map(Object.entries(fields)),
  body: body === null || typeof body === 'string' ? body : JSON.stringify(body),
  callClass: 'default',
  method: 'POST',
  path: '/v1/chat/completions',
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

describe('limits in fields', () => {
  test('a request limit whose reset fits a day is the daily meter', () => {
    expect(learn(200, quota('requests', 200, 199, '7m12s')).meters).toMatchObject([
      { meter: 'requests_day', limit: 200, windowMs: 86_400_000 },
    ]);
  });

  test('a second call during the drain of the first still fits the day, because remaining is a floor', () => {
    expect(learn(200, quota('requests', 200, 198, '11m32.334s')).meters).toMatchObject([
      { meter: 'requests_day', windowMs: 86_400_000 },
    ]);
  });

  test('the level keeps the fraction that the reset shows and contains the truth', () => {
    // Two calls 64 ms apart on 500 per minute: used is 2 − 64 × 500/60000.
    const [report] = learn(200, quota('requests', 500, 498, '176ms')).meters;
    const truth = 2 - (64 * 500) / 60_000;
    expect(report?.level?.lowest).toBeLessThanOrEqual(truth);
    expect(report?.level?.highest).toBeGreaterThanOrEqual(truth);
    expect((report?.level?.highest ?? 9) - (report?.level?.lowest ?? 0)).toBeLessThan(0.02);
  });

  test('without a usable reset the level is the unit below what remaining says, and the window is not told', () => {
    expect(learn(200, quota('tokens', 30_000, 29_990, 'soon')).meters).toEqual([
      { meter: 'tokens', limit: 30_000, windowMs: null, level: { lowest: 9, highest: 10 } },
    ]);
  });

  test('a window that fits no known length is not guessed', () => {
    expect(learn(200, quota('tokens', 18_000, 17_997, '7.66s')).meters).toMatchObject([{ windowMs: null }]);
  });

  test('a stated renewal period wins over what the reset would suggest', () => {
    const fields = { ...quota('requests', 10, 9, '1'), 'x-ratelimit-renewalperiod-requests': '10' };
    expect(learn(200, fields).meters).toMatchObject([{ meter: 'requests', windowMs: 10_000 }]);
  });

  test('a reset that contradicts remaining is not believed', () => {
    const fields = { ...quota('tokens', 5000, 0, '0'), 'x-ratelimit-renewalperiod-tokens': '60' };
    expect(learn(429, fields).meters).toMatchObject([{ level: { lowest: 4999, highest: 5000 } }]);
  });

  test('of two limits for one meter the tighter one is reported', () => {
    const fields = {
      ...quota('tokens', 30_000, 29_000, '2s'),
      ...quota('project-tokens', 5000, 4000, '12s'),
    };
    expect(learn(200, fields).meters).toMatchObject([{ meter: 'tokens', limit: 5000 }]);
  });

  test('any deduced window and level are those of a real bucket', () => {
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
      { numRuns: 1000 },
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
  ])('%s is permanent', (code) => {
    expect(learn(429, {}, refusal(code, 'insufficient_quota')).throttle).toMatchObject({
      kind: 'permanent',
      reason: 'quota',
    });
  });

  test('the type decides where the code is unknown', () => {
    expect(learn(429, {}, refusal(null, 'insufficient_quota')).throttle).toMatchObject({ reason: 'quota' });
  });

  test('a detail that nobody knows does not hide the code', () => {
    const error = { code: 'insufficient_quota', type: 'x', details: [{ reason: 'SOMETHING_NEW' }] };
    expect(learn(429, {}, { error }).throttle).toMatchObject({ reason: 'quota' });
  });

  test('wording about billing decides nothing', () => {
    const body = refusal('rate_limit_exceeded', 'tokens', 'Please try again in 2s. Visit /settings/billing');
    expect(learn(429, {}, body).throttle).toMatchObject({ kind: 'rate', waitMs: 2000 });
  });

  test('remaining 0 on a success is no throttle', () => {
    expect(learn(200, quota('requests', 500, 0, '60s')).throttle).toBeNull();
  });

  test.each([400, 401, 403, 404, 500, 502])('status %d by itself is no throttle', (status) => {
    expect(learn(status, {}, refusal('model_not_found', 'invalid_request_error')).throttle).toBeNull();
  });

  test.each([
    [503, refusal('server_is_overloaded', 'service_unavailable_error')],
    [429, refusal('slow_down', 'rate_limit_error')],
    [529, { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }],
    [503, null],
  ])('overload: %d %j', (status, body) => {
    expect(learn(status, { 'retry-after': '3' }, body).throttle).toEqual({ kind: 'overload', waitMs: 3000 });
  });

  test('a code speaks before the status: 503 with a rate code is a rate refusal', () => {
    expect(learn(503, {}, refusal('rate_limit_exceeded', 'requests')).throttle).toMatchObject({
      kind: 'rate',
    });
  });

  test('an HTML 429 is a refusal without a hint', () => {
    expect(learn(429, {}, '<html>').throttle).toEqual({ kind: 'rate', waitMs: null, meter: null });
  });

  test('more requested than the limit holds is too large even when the text does not say so', () => {
    const message =
      'Rate limit reached for x in organization o on tokens per min (TPM): Limit 10, Requested 11.';
    expect(learn(429, {}, refusal('rate_limit_exceeded', 'tokens', message)).throttle).toMatchObject({
      reason: 'too_large',
    });
  });
});

describe('the wait', () => {
  const body = refusal('rate_limit_exceeded', 'tokens', 'Please try again in 1m8.256s. Need more?');

  test('fields win over the text', () => {
    expect(learn(429, { 'retry-after-ms': '70', 'retry-after': '1' }, body).throttle).toMatchObject({
      waitMs: 70,
    });
    expect(learn(429, { 'retry-after': '1' }, body).throttle).toMatchObject({ waitMs: 1000 });
    expect(learn(429, {}, body).throttle).toMatchObject({ waitMs: 68_256 });
  });

  test('the zero reset beside remaining 0 means the renewal period, or the seconds of the text', () => {
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

  test('a spent day names no wait, whatever the answer states beside it', () => {
    const details = [{ violations: [{ quotaId: 'GenerateRequestsPerDay' }] }, { retryDelay: '31s' }];
    const error = { code: 429, status: 'RESOURCE_EXHAUSTED', details };
    expect(learn(429, { 'retry-after': '31' }, { error }).throttle).toEqual({
      kind: 'permanent',
      reason: 'daily',
      waitMs: null,
    });
  });

  test('the older sentence is understood', () => {
    const text =
      'Rate limit reached for x in organization o on requests per min. Limit: 3 / min. Please try again in 20s.';
    const told = learn(429, {}, refusal('rate_limit_exceeded', 'requests', text));
    expect(told.throttle).toEqual({ kind: 'rate', waitMs: 20_000, meter: 'requests' });
    expect(told.meters).toEqual([{ meter: 'requests', limit: 3, windowMs: 60_000, level: null }]);
  });
});

describe('what a sentence adds', () => {
  const sentence = (limit: number, used: number): unknown =>
    refusal(
      'rate_limit_exceeded',
      'tokens',
      `Rate limit reached for gpt-image-2 (for limit gpt-image) in project proj_J organization org-l on tokens per min (TPM): Limit ${limit}, Used ${used}, Requested 821. Please try again in 1.146s.`,
    );

  test('a limit that no field names', () => {
    expect(learn(429, {}, sentence(50_000, 49_949)).meters).toEqual([
      { meter: 'tokens', limit: 50_000, windowMs: 60_000, level: { lowest: 49_948, highest: 49_949 } },
    ]);
  });

  test("a project's own limit replaces the wider one of the fields, a wider one does not", () => {
    const fields = quota('tokens', 30_000, 554, '58.891s');
    expect(learn(429, fields, sentence(20_000, 19_900)).meters).toMatchObject([{ limit: 20_000 }]);
    expect(learn(429, fields, sentence(50_000, 49_900)).meters).toMatchObject([{ limit: 30_000 }]);
  });

  test('whose quota it is, and what the call was charged', () => {
    const told = learn(429, {}, sentence(50_000, 49_949));
    expect(told.scope).toEqual({ organization: 'org-l', project: 'proj_J', family: 'gpt-image' });
    expect(told.requestedTokens).toBe(821);
  });
});

describe('usage of a success', () => {
  test.each([
    [{ choices: [], usage: { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 } }, 7],
    [{ content: [], usage: { input_tokens: 5, output_tokens: 6 } }, 11],
    [{ candidates: [], usageMetadata: { totalTokenCount: 9 } }, 9],
  ])('%j', (body, usedTokens) => {
    expect(learn(200, {}, body).usedTokens).toBe(usedTokens);
  });

  test('is found at the end of a body that was cut', () => {
    const body = JSON.stringify({ data: 'x'.repeat(20_000), usage: { prompt_tokens: 8, total_tokens: 8 } });
    expect(learn(200, {}, body.slice(-8000)).usedTokens).toBe(8);
  });

  test('is not taken from what the model wrote', () => {
    const body = JSON.stringify({ choices: [{ message: { content: '"usage":{"total_tokens":99}' } }] });
    expect(learn(200, {}, body).usedTokens).toBeUndefined();
  });
});

test('nothing an upstream sends makes learning throw or gives an impossible number', () => {
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
        const told = learnFrom(kind, { ...facts(code, fields, body), callClass });
        for (const { limit, windowMs, level } of told.meters) {
          expect(limit).toBeGreaterThan(0);
          expect(windowMs === null || windowMs > 0).toBe(true);
          if (level !== null) expect(level.lowest >= 0 && level.lowest <= level.highest).toBe(true);
        }
        const waitMs = told.throttle?.waitMs ?? null;
        expect(waitMs === null || (Number.isFinite(waitMs) && waitMs >= 0)).toBe(true);
      },
    ),
    { numRuns: 1000 },
  );
});
