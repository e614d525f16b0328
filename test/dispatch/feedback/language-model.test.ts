/** What the fields, the error and the events of a language model teach. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Feedback } from '../../../src/call.ts';
import { learnFromStreamEvent } from '../../../src/dispatch/feedback/language-model.policy.ts';
import { dayMs, error, learn, meterWords, metersOf, nowMs, quota, throttleOf } from './learning.ts';
import type { Fields } from './learning.ts';

const model = 'language-model';
const refusal = (code: string | null, type: string, message = ''): object => error(message, { code, type });
const slow = refusal('rate_limit_exceeded', 'tokens');
const said = (message: string): object => refusal('rate_limit_exceeded', 'tokens', message);

const renewed = { ...quota('requests', 10, 9, '1'), 'x-ratelimit-renewalperiod-requests': '10' };
const project = { ...quota('tokens', 30_000, 29_000, '2s'), ...quota('project-tokens', 5_000, 4_000, '12s') };
const yearsAway = {
  'x-ratelimit-limit-requests': '60',
  'x-ratelimit-reset-requests': '999999999s',
  'x-ratelimit-renewalperiod-requests': '60',
};
const draft = { ratelimit: '"api";r=4;t=20', 'ratelimit-policy': '"api";q=10;w=60' };
const older = { 'ratelimit-limit': '10, 10;w=60', 'ratelimit-remaining': '4', 'ratelimit-reset': '20' };
const ofMinute = { 'x-ratelimit-limit-minute': '10', 'x-ratelimit-remaining-minute': '4' };

describe('the limit fields of a language model', () => {
  test.each<[string, Fields, string]>([
    ['the day by a first call', quota('requests', 14_400, 14_399, '6s'), 'requests_day 14400/86400s 1..1'],
    ['a level alone', quota('tokens', 30_000, 29_990, 'soon'), 'tokens 30000/? 9..10'],
    ['the period of renewal', renewed, 'requests 10/10s 0..1'],
    ['the tighter of two limits for one meter', project, 'tokens 5000/60s 999.917..1000.083'],
    ['a full bucket, where the reset is years away', yearsAway, 'requests 60/60s 60..60'],
    // It may fall to nothing in a minute.
    ['no window', quota('requests', 60, 59, '60'), 'requests 60/? 0..1'],
    ['no window', quota('requests', 60, 59, '1m0s'), 'requests 60/? 0..1'],
    ['no window', quota('requests', 500, 492, '57'), 'requests 500/? 7..8'],
    ['no window', quota('requests', 1_000, 999, '59'), 'requests 1000/? 0..1'],
    ['no window', quota('requests', 5_000, 4_996, '58s'), 'requests 5000/? 3..4'],
    ['of no provider what those of any API do', draft, 'requests 10/60s 5..6'],
    ['of no provider what those of any API do', older, 'requests 10/60s 5..6'],
    ['of no provider what those of any API do', ofMinute, 'requests 10/60s 5..6'],
  ])('state %s: %j', (_, fields, expected) => expect(meterWords(model, fields)).toBe(expected));

  test('give a level that keeps the fraction shown by the reset and contains the true one', () => {
    // Two calls 64 ms apart on 500 per minute: used is 2 − 64 × 500/60000.
    const [report] = metersOf(model, quota('requests', 500, 498, '176ms'));
    const truth = 2 - (64 * 500) / 60_000;
    const { lowest = 9, highest = 0 } = report?.level ?? {};
    expect(lowest <= truth && highest >= truth && highest - lowest < 0.02).toBe(true);
  });

  test('give a window and a level that a real bucket can have, whatever they say', () => {
    const bucket = fc.record({
      limit: fc.integer({ min: 10, max: 100_000 }),
      windowMs: fc.constantFrom(1_000, 10_000, 60_000, 3_600_000, dayMs),
      share: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(bucket, ({ limit, windowMs, share }) => {
        const used = Math.max(1, share * limit);
        const resetMs = Math.trunc((used * windowMs) / limit);
        const [report] = metersOf(model, quota('tokens', limit, Math.floor(limit - used), `${resetMs}ms`));
        expect([null, windowMs]).toContain(report?.windowMs);
        expect(report?.level?.lowest).toBeLessThanOrEqual(used + 1e-6);
        expect(report?.level?.highest).toBeGreaterThanOrEqual(used - 1e-6);
      }),
      {
        numRuns: 1_000,
        // What is left is a round number by chance.
        examples: [
          [{ limit: 1_234, windowMs: 10_000, share: 234.5 / 1_234 }],
          [{ limit: 90_000, windowMs: 60_000, share: 0.5 }],
        ],
      },
    );
  });
});

describe('input and output tokens that are counted apart', () => {
  const anthropic = (of: string, limit: number, left: number): Fields => ({
    [`anthropic-ratelimit-${of}-limit`]: String(limit),
    [`anthropic-ratelimit-${of}-remaining`]: String(left),
    [`anthropic-ratelimit-${of}-reset`]: '2026-09-01T12:00:06Z',
  });
  const apart = { ...anthropic('input-tokens', 50_000, 45_000), ...anthropic('output-tokens', 8_000, 7_000) };
  const both = { input_tokens: 50_000, output_tokens: 8_000 };
  const others = { ...quota('input-tokens', 9, 1, ''), ...quota('output-tokens', 8, 1, '') };

  test('have a meter of their own, with window and level', () => {
    const level = { lowest: expect.any(Number), highest: expect.any(Number) };
    expect(metersOf(model, apart)).toEqual([
      { meter: 'input_tokens', limit: 50_000, windowMs: 60_000, level },
      { meter: 'output_tokens', limit: 8_000, windowMs: 60_000, level },
    ]);
  });

  test.each<[string, Fields, object]>([
    ['a plain limit of the one repeats it', { ...apart, ...anthropic('tokens', 50_000, 1_000) }, both],
    ['a plain limit of the other repeats it', { ...apart, ...anthropic('tokens', 8_000, 1_000) }, both],
    ['a plain limit of both repeats them', { ...apart, ...anthropic('tokens', 58_000, 1_000) }, both],
    ['another plain limit counts all', { ...apart, ...anthropic('tokens', 9, 1) }, { tokens: 9, ...both }],
    ['fields of another provider', others, { input_tokens: 9, output_tokens: 8 }],
  ])('%s: %j', (_, fields, expected) => {
    const meters = metersOf(model, fields).map(({ meter, limit }) => [meter, limit]);
    expect(Object.fromEntries(meters)).toEqual(expected);
  });

  test.each([
    ['input tokens per minute (ITPM)', 'input_tokens'],
    ['output tokens per minute (OTPM)', 'output_tokens'],
  ])('are refused in the words "%s"', (metric, meter) => {
    const sums = 'Limit 9000, Used 8500, Requested 821. Try again in 2.5s.';
    const body = said(`Rate limit reached on ${metric}: ${sums}`);
    expect(learn(model, { body })).toMatchObject({
      meters: [{ meter, limit: 9_000 }],
      throttle: { kind: 'rate', waitMs: 2_500, meter },
      requestedTokens: 821,
    });
  });
});

describe('the verdict on a response', () => {
  const permanent = (reason: string): object => ({ kind: 'permanent', reason });
  const overload = { kind: 'overload', waitMs: 3_000 };
  const detailed = error('', { code: 'insufficient_quota', details: [{ reason: 'NEW' }] });
  const reached =
    'Rate limit reached for x in organization o on tokens per min (TPM): Limit 9, Requested 11.';
  test.each<[string, number, unknown, object]>([
    ['spent credit', 429, refusal('credit_balance_exhausted', 'insufficient_quota'), permanent('quota')],
    ['a spent organization', 429, refusal('organization_spend_limit_exceeded', 'x'), permanent('quota')],
    ['a spent project', 429, refusal('project_spend_limit_exceeded', 'x'), permanent('quota')],
    ['a used organization', 429, refusal('organization_usage_limit_exceeded', 'x'), permanent('quota')],
    ['a type without a code', 429, refusal(null, 'insufficient_quota'), permanent('quota')],
    ['a code beside unknown details', 429, detailed, permanent('quota')],
    ['a call above the limit', 429, said(reached), permanent('too_large')],
    ['an overload by its code', 503, refusal('server_is_overloaded', 'service_unavailable_error'), overload],
    ['a call to slow down', 429, refusal('slow_down', 'rate_limit_error'), overload],
    ['an overload by its type', 529, { type: 'error', ...error('', { type: 'overloaded_error' }) }, overload],
    ['an overload by its status', 503, null, overload],
    ['a rate by its code, whatever the status', 503, slow, { kind: 'rate' }],
    ['a page', 429, '<html>', { kind: 'rate', waitMs: 3_000, meter: null }],
  ])('is %s: %d %j', (_, status, body, expected) => {
    expect(throttleOf(model, { status, body, fields: { 'retry-after': '3' } })).toMatchObject(expected);
  });

  test.each([200, 400, 401, 403, 404, 500, 502])('is no throttle for status %d by itself', (status) => {
    const body = refusal('model_not_found', 'invalid_request_error');
    expect(throttleOf(model, { status, body, fields: quota('requests', 500, 0, '60s') })).toBeNull();
  });
});

describe('the wait of a refusal', () => {
  const spent = { ...quota('requests', 500, 0, '2.5s'), ...quota('tokens', 30_000, 29_990, '20ms') };
  const trap = {
    ...quota('tokens', 5_000, 0, '0'),
    'x-ratelimit-renewalperiod-tokens': '60',
    'retry-after': '1',
    'retry-after-ms': '0',
  };
  const told = said('Please try again in 1m8.256s. Visit /settings/billing');
  const daily = error('', {
    code: 429,
    status: 'RESOURCE_EXHAUSTED',
    details: [{ violations: [{ quotaId: 'GenerateRequestsPerDay' }] }, { retryDelay: '31s' }],
  });
  test.each<[string, Fields, unknown, number | null]>([
    ['is the reset of the limit of which nothing is left', spent, slow, 2_500],
    ['is Retry-After rather than a reset', { ...spent, 'retry-after': '1' }, slow, 1_000],
    ['is that of its sentence rather than a reset', spent, said('Please try again in 120ms.'), 120],
    ['is unknown where something is left', quota('tokens', 30_000, 554, '58.891s'), slow, null],
    ['is that of its milliseconds first', { 'retry-after-ms': '70', 'retry-after': '1' }, told, 70],
    ['is Retry-After rather than that of its sentence', { 'retry-after': '1' }, told, 1_000],
    ['is that of its sentence, whatever that says of billing', {}, told, 68_256],
    ['is that of its sentence before such a period', trap, error('Retry after 17 seconds. More.'), 17_000],
    ['is unknown for a used-up day', { 'retry-after': '31' }, daily, null],
    ['is nowhere', {}, '<html>', null],
  ])('%s: %j %j', (_, fields, body, waitMs) => {
    const throttle = throttleOf(model, { fields, body });
    expect(throttle).toMatchObject({ kind: body === daily ? 'permanent' : 'rate', waitMs });
  });
});

describe('the sentence of a refusal', () => {
  const sentence = (limit: number, used: number): object =>
    said(
      `Rate limit reached for gpt-image-2 (for limit gpt-image) in project proj_J organization org-l on tokens per min (TPM): Limit ${limit}, Used ${used}, Requested 821. Please try again in 1.146s.`,
    );

  test('states a limit that no field names, whose quota it is, and what the call was charged', () => {
    const level = { lowest: 49_948, highest: 49_949 };
    expect(learn(model, { body: sentence(50_000, 49_949) })).toMatchObject({
      meters: [{ meter: 'tokens', limit: 50_000, windowMs: 60_000, level }],
      scope: { organization: 'org-l', project: 'proj_J', family: 'gpt-image' },
      requestedTokens: 821,
    });
  });

  test('replaces the limit of the fields when that of the project is tighter', () => {
    const fields = quota('tokens', 30_000, 554, '58.891s');
    const limitOf = (body: object) => learn(model, { fields, body }).meters.map(({ limit }) => limit);
    const limits = [limitOf(sentence(20_000, 19_900)), limitOf(sentence(50_000, 49_900))];
    expect(limits).toEqual([[20_000], [30_000]]);
  });

  test('is understood in its older form', () => {
    const text = 'Rate limit reached for x on requests per min. Limit: 3 / min. Please try again in 20s.';
    expect(learn(model, { body: said(text) })).toMatchObject({
      throttle: { kind: 'rate', waitMs: 20_000, meter: 'requests' },
      meters: [{ meter: 'requests', limit: 3, windowMs: 60_000, level: null }],
    });
  });
});

describe('an event inside a 200 stream', () => {
  const learnFrom = (event: unknown): Feedback =>
    learnFromStreamEvent(typeof event === 'string' ? event : JSON.stringify(event), nowMs);
  const body = said(
    'Rate limit reached for gpt-5.1 in organization org-A on tokens per min (TPM): Limit 30000, Used 22999, Requested 12528. Please try again in 11.054s.',
  );

  test('teaches what a refusal with the same error teaches, in each envelope', () => {
    const expected = { ...learn(model, { body }), errorStatus: 429 };
    const throttle = { waitMs: 11_054, meter: 'tokens' };
    expect(expected).toMatchObject({ throttle, requestedTokens: 12_528 });
    const failed = JSON.stringify({ type: 'response.failed', response: body });
    for (const event of [body, failed, `data: ${failed}\n\n`]) expect(learnFrom(event)).toEqual(expected);
  });

  test.each<[unknown, object]>([
    [refusal('insufficient_quota', 'x'), { throttle: { kind: 'permanent', reason: 'quota' } }],
    [{ type: 'error', ...error('', { type: 'overloaded_error' }) }, { throttle: { kind: 'overload' } }],
    [refusal(null, 'server_error', 'boom'), { meters: [], throttle: null, errorStatus: 500 }],
  ])('is an error: %j', (event, expected) => expect(learnFrom(event)).toMatchObject(expected));

  test.each([
    '[DONE]',
    '',
    '{"choices":[{"delta":{"content":"hi"}}],"usage":null}',
    '{"error":',
    { choices: [{ delta: { content: '{"error":{"code":"insufficient_quota"}}' } }] },
    { response: { error: null } },
  ])('teaches nothing when it is %p', (event) => {
    expect(learnFrom(event)).toEqual({ meters: [], throttle: null });
  });
});
