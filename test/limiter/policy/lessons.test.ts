/** What responses teach a bucket: the cost of a refused call, when a closed bucket opens, and what is still on its way. */
import { expect, test } from '@jest/globals';
import type { Feedback, MeterName } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { done, names, TestBucket, throttled } from './scheduling.ts';

type Provider = Parameters<typeof learnFrom>[0];
const feedbackOf = (
  provider: Provider,
  status: number,
  fields: Record<string, string>,
  body: unknown,
): Feedback =>
  learnFrom(provider, {
    status,
    fields: new Map(Object.entries(fields)),
    body: body === null ? null : JSON.stringify(body),
    callClass: provider === 'commerce' ? 'graphql' : 'default',
    nowMs: 0,
  });

/** The call asked for 400 points, 300 of 1,000 are free, and 50 drain each second. */
const throttleStatus = { maximumAvailable: 1000, currentlyAvailable: 300, restoreRate: 50 };
const tooManyPoints = feedbackOf(
  'commerce',
  200,
  {},
  {
    errors: [{ message: 'Throttled', extensions: { code: 'THROTTLED' } }],
    extensions: { cost: { requestedQueryCost: 400, actualQueryCost: null, throttleStatus } },
  },
);

/** The call asked for 12,528 tokens, and 7,001 of 30,000 are free: there is room in 11.054 s. */
const message =
  'Rate limit reached for gpt-5.1 in organization org-1 on tokens per min (TPM): Limit 30000, Used 22999, ' +
  'Requested 12528. Please try again in 11.054s.';
const tokenFields = {
  'x-ratelimit-limit-tokens': '30000',
  'x-ratelimit-remaining-tokens': '7001',
  'x-ratelimit-reset-tokens': '45.998s',
};
const tooManyTokens = feedbackOf('language-model', 429, tokenFields, {
  error: { message, type: 'tokens', code: 'rate_limit_exceeded' },
});

atOrigins('a call that was refused', (instant) => {
  test.each<[string, Feedback, MeterName, number, number, number]>([
    ['of GraphQL points', tooManyPoints, 'cost', 10, 400, 2_000],
    ['of tokens', tooManyTokens, 'tokens', 50, 12_528, 11_054],
  ])(
    'for lack %s leaves as soon as the cost that its refusal stated has room',
    (_what, feedback, meter, guess, asked, waitMs) => {
      const line = new TestBucket(instant, { setting: { meters: [], learn: true, probe: 0 } });
      line.enter(['guessed'], { costs: { [meter]: guess } });
      line.at(1_030).settle('guessed', throttled(waitMs), line.lesson(feedback, 1_000));
      const again = line.admit('known', { costs: { [meter]: asked } });
      const toldMs = again.kind === 'queued' ? again.forecastMs : Infinity;
      for (const ms of [toldMs, line.leavesAt('known') - 1_030]) {
        expect(ms).toBeGreaterThanOrEqual(waitMs - 1);
        expect(ms).toBeLessThanOrEqual(waitMs + 100);
      }
    },
  );

  test('goes back into its lane with what it asks for', () => {
    const line = new TestBucket(instant, { setting: { meters: [], learn: true, probe: 0 } });
    line.enter(['guessed'], { costs: { requests: 1, tokens: 50 } });
    line.settle('guessed', throttled(11_054, { requeue: true }), line.lesson(tooManyTokens));
    expect([...line.bucket.tickets.values()][0]?.costs).toEqual({ requests: 1, tokens: 12_528 });
    expect(line.bucket.waitingCosts.get('tokens')).toBe(12_528);
  });
});

const limit = 6_000;
const requestFields = (used: number, resetIn: string) => ({
  'x-ratelimit-limit-requests': String(limit),
  'x-ratelimit-remaining-requests': String(limit - used),
  'x-ratelimit-reset-requests': resetIn,
});

atOrigins('a closed bucket', (instant) => {
  test('with calls in flight opens at the stated time, after 9.829 s, and goes on at full pace', () => {
    const line = new TestBucket(instant, { limit, windowMs: 60_000 });
    const used = feedbackOf('language-model', 200, requestFields(1, '10ms'), null);
    for (const ticket of names(120, 'early')) {
      line.enter([ticket]);
      line.settle(ticket, done, line.lesson(used));
      line.ms += 1;
    }
    line.at(61_100).enter(names(8, 'refused'));
    const error = { type: 'requests', code: 'rate_limit_exceeded', message: '' };
    const fields = { ...requestFields(limit, '1m9.8s'), 'retry-after-ms': '9829' };
    const refusal = feedbackOf('language-model', 429, fields, { error });
    for (const [at, ticket] of names(8, 'refused').entries())
      line
        .at(61_120 + at / 10)
        .settle(ticket, throttled(9_829, { requeue: true }), line.lesson(refusal, 61_100));
    line.at(61_220).enter(names(230, 'late'));

    const opensAt = 61_120.7 + 9_829;
    const left: number[] = [];
    for (; line.ms < opensAt + 5_000; line.ms += 1)
      for (const _ticket of line.tick()) left.push(line.ms - opensAt);
    // Each of the refused calls would have room at that time: the bucket is full except for one unit.
    expect(left[0]).toBeGreaterThanOrEqual(-1);
    expect(left[0]).toBeLessThanOrEqual(50);
    expect(left[119]).toBeLessThanOrEqual(1_190 + 50);
    expect(left).toHaveLength(238);
  });
});
