/** What a refusal teaches of the cost of the call that was refused. */
import { expect, test } from '@jest/globals';
import type { Feedback, MeterName } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { TestBucket, throttled } from './scheduling.ts';

const feedbackOf = (
  ...[provider, status, fields, body]: [Parameters<typeof learnFrom>[0], number, object, unknown]
): Feedback =>
  learnFrom(provider, {
    status,
    fields: new Map(Object.entries(fields)),
    body: JSON.stringify(body),
    callClass: provider === 'commerce' ? 'graphql' : 'default',
    nowMs: 0,
  });

/** The call asked for 400 points, 300 of 1,000 are free, and 50 drain each second. */
const throttleStatus = { maximumAvailable: 1000, currentlyAvailable: 300, restoreRate: 50 };
const cost = { requestedQueryCost: 400, actualQueryCost: null, throttleStatus };
const errors = [{ message: 'Throttled', extensions: { code: 'THROTTLED' } }];
const tooManyPoints = feedbackOf('commerce', 200, {}, { errors, extensions: { cost } });

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
  ])('for lack %s leaves as soon as its stated cost has room', (_, feedback, meter, guess, asked, waitMs) => {
    const line = new TestBucket(instant, { meters: [] });
    line.enter(['guessed'], { costs: { [meter]: guess } });
    line.at(1_030).settle('guessed', throttled(waitMs), line.lesson(feedback, 1_000));
    const again = line.admit('known', { costs: { [meter]: asked } });
    const toldMs = again.kind === 'queued' ? again.forecastMs : Infinity;
    for (const ms of [toldMs, line.leavesAt('known') - 1_030]) {
      expect(ms).toBeGreaterThanOrEqual(waitMs - 1);
      expect(ms).toBeLessThanOrEqual(waitMs + 100);
    }
  });

  test('goes back into its lane with what it asks for', () => {
    const line = new TestBucket(instant, { meters: [] });
    line.enter(['guessed'], { costs: { requests: 1, tokens: 50 } });
    line.settle('guessed', throttled(11_054, { requeue: true }), line.lesson(tooManyTokens));
    expect([...line.bucket.tickets.values()][0]?.costs).toEqual({ requests: 1, tokens: 12_528 });
    expect(line.bucket.waitingCosts.get('tokens')).toBe(12_528);
  });
});
