/** What a call is expected to be charged, after what responses of its workspace and model have stated. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Costs, Feedback, MeterReport, TokenUsage } from '../../src/call.ts';
import type { TokenGuess } from '../../src/dispatch/model-call.policy.ts';
import { maxModels, TokenEstimates } from '../../src/journey/recent-responses.ts';

const plain: TokenGuess = { prompt: 1_000, marked: 0, output: null, apart: false };
const claude: TokenGuess = { prompt: 150_000, marked: 0, output: 4_000, apart: true };
const nothing: Feedback = { meters: [], throttle: null };

/** All of the prompt counts, unless a cache has `kept` a part of it. */
const used = (prompt: number, output: number, kept = 0, total = prompt - kept + output): Feedback => ({
  ...nothing,
  usage: { prompt, kept, input: prompt - kept, output, total } satisfies TokenUsage,
});
const stating = (feedback: Feedback, meter: Partial<MeterReport>): Feedback => ({
  ...feedback,
  meters: [{ meter: 'tokens', limit: 30_000, windowMs: 60_000, level: null, ...meter }],
});
const level = { lowest: 1, highest: 2 };

/** Estimates that learn of one lane, and what they expect of it. */
function estimates() {
  const tokens = new TokenEstimates();
  return {
    expected: (guess: TokenGuess, lane = 'l'): Costs => tokens.expected({ guess, lane }),
    learn(
      guess: TokenGuess,
      head: Feedback,
      { late = null as Feedback | null, times = 1, lane = 'l' } = {},
    ): void {
      for (let n = 0; n < times; n += 1) tokens.learn({ guess, lane }, head, late);
    },
  };
}

describe('the estimated tokens of a call', () => {
  const asked = { ...plain, output: 5_000 };

  test('are the prompt and all allowed output while nothing is known', () => {
    const { expected } = estimates();
    expect([expected(plain), expected(asked)]).toEqual([{ tokens: 1_000 }, { tokens: 6_000 }]);
  });

  test('follow earlier calls of the same workspace and model, with no more output than the call allows', () => {
    const { expected, learn } = estimates();
    learn(asked, used(1_200, 300));
    // One response is no measure of the others.
    expect(expected(asked)).toEqual({ tokens: 6_200 });
    learn(asked, used(1_200, 300), { times: 120 });
    expect(expected(asked)).toEqual({ tokens: 1_501 });
    expect(expected({ ...plain, output: 100 })).toEqual({ tokens: 1_300 });
    expect(expected(asked, 'elsewhere')).toEqual({ tokens: 6_000 });
  });

  test('ignore earlier calls where responses state the level, because such a limiter charges what was asked for', () => {
    const { expected, learn } = estimates();
    learn(plain, stating(used(1_200, 3), { level }));
    expect(expected(asked)).toEqual({ tokens: 6_000 });
  });

  test('leave out output that the provider does not count', () => {
    const { expected, learn } = estimates();
    learn(plain, used(900, 500, 0, 900));
    expect(expected(asked)).toEqual({ tokens: 900 });
  });

  test('are split where the provider counts input and output apart', () => {
    const { expected, learn } = estimates();
    const short = { ...claude, prompt: 2_000 };
    expect(expected(short)).toEqual({ tokens: 2_001, input_tokens: 2_000, output_tokens: 1 });
    learn(short, used(2_000, 700), { times: 80 });
    expect(expected(short).output_tokens).toBeLessThanOrEqual(710);
    learn(plain, stating(used(1_000, 50), { meter: 'input_tokens' }), { lane: 'proxy' });
    expect(expected(plain, 'proxy')).toEqual({ tokens: 1_100, input_tokens: 1_000, output_tokens: 100 });
  });

  test('are remembered for at most 10,000 pairs of workspace and model, those used latest', () => {
    const { expected, learn } = estimates();
    const guess = { ...claude, prompt: 1_000 };
    for (let n = 0; n < maxModels + 50; n += 1) learn(guess, used(2_000, 50), { lane: `l${n}` });
    const inputs = [49, 50, maxModels + 49].map((n) => expected(guess, `l${n}`).input_tokens);
    expect(inputs).toEqual([1_000, 2_000, 2_000]);
  });

  test('are an amount that a meter can hold, whatever responses say', () => {
    const count = fc.oneof(fc.constant(null), fc.nat(1_000_000), fc.constant(1e12));
    const usage = fc.record({ prompt: count, kept: fc.nat(1e9), input: count, output: count, total: count });
    const guesses = fc.record({
      prompt: fc.integer({ min: 1, max: 1_000_000 }),
      marked: fc.nat(1_000_000),
      output: fc.oneof(fc.constant(null), fc.nat(1e6)),
      apart: fc.boolean(),
    });
    fc.assert(
      fc.property(guesses, fc.array(usage, { maxLength: 5 }), (guess, reported) => {
        const { expected, learn } = estimates();
        for (const one of reported) learn(guess, nothing, { late: { ...nothing, usage: one } });
        for (const units of Object.values(expected(guess)))
          expect(Number.isFinite(units) && units >= 0).toBe(true);
      }),
    );
  });
});

describe('the estimated tokens of a call with a cached prompt', () => {
  const marked = { ...claude, marked: 148_000 };
  const kept = used(150_000, 100, 148_000);

  test('leave out what the call marks for the cache', () => {
    const { expected, learn } = estimates();
    expect(expected(marked).input_tokens).toBe(2_000);
    learn(marked, nothing, { late: kept });
    expect(expected(marked).input_tokens).toBe(2_000);
    expect(expected({ ...marked, prompt: 152_000 }).input_tokens).toBe(4_000);
  });

  test('count the whole prompt where what is marked does not lie in the cache, until it does', () => {
    const { expected, learn } = estimates();
    learn(marked, nothing, { late: used(150_000, 1) });
    expect(expected(marked).input_tokens).toBe(150_000);
    learn(marked, nothing, { late: kept, times: 40 });
    expect(expected(marked).input_tokens).toBeLessThan(2_100);
  });

  test('count the share that was counted before, where nothing is marked', () => {
    const { expected, learn } = estimates();
    learn(claude, nothing, { late: used(150_000, 1, 75_000) });
    expect(expected({ ...claude, prompt: 1_000 }).input_tokens).toBe(500);
  });
});

describe('the estimated tokens of a call that is charged by rule', () => {
  const asked = { ...plain, output: 400 };
  const refusal = (requestedTokens: number): Feedback => ({
    ...nothing,
    throttle: { kind: 'rate', waitMs: 1_000, meter: 'tokens' },
    requestedTokens,
  });
  const response = stating(used(1_000, 30), { level });

  test('are corrected by one refusal, until another one states something else, also over responses between them', () => {
    const { expected, learn } = estimates();
    learn(asked, refusal(2_400));
    expect(expected(asked)).toEqual({ tokens: 2_400 });
    learn(asked, response);
    expect(expected({ ...asked, prompt: 1_200 })).toEqual({ tokens: 2_600 });
    learn(asked, refusal(1_900));
    expect(expected(asked)).toEqual({ tokens: 1_900 });
    // What is reserved too much is given back with the response; less than the rule would be refused.
    learn(asked, refusal(100));
    expect(expected(asked)).toEqual({ tokens: 1_400 });
  });

  test('are corrected by a refusal behind the content of a stream, whatever usage stands before it', () => {
    const { expected, learn } = estimates();
    learn(asked, nothing, { late: { ...used(9, 1), ...refusal(2_400) } });
    expect(expected(asked)).toEqual({ tokens: 2_400 });
    expect(expected(asked, 'elsewhere')).toEqual({ tokens: 1_400 });
  });

  test('believe a refusal no further than eight times the rule, or what an image adds to a short prompt', () => {
    const { expected, learn } = estimates();
    learn(asked, refusal(1e9));
    expect(expected(asked)).toEqual({ tokens: 8 * 1_400 });
    const short = { ...plain, prompt: 10, output: 0 };
    expect(expected(short)).toEqual({ tokens: 10 + 8_192 });
    learn(short, refusal(1_110));
    expect(expected(short)).toEqual({ tokens: 1_110 });
  });

  test('follow the rule again when many responses came after an odd refusal', () => {
    const { expected, learn } = estimates();
    learn(asked, refusal(9_000));
    learn(asked, response, { times: 127 });
    expect(expected(asked).tokens).toBe(9_000);
    learn(asked, response);
    expect(expected(asked).tokens).toBe(1_400);
  });

  test('are left to responses where they say what was used', () => {
    const { expected, learn } = estimates();
    learn(asked, used(1_000, 400));
    learn(asked, refusal(9_000));
    expect(expected(asked)).toEqual({ tokens: 1_400 });
  });
});
