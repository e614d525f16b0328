import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Feedback, TokenUsage } from '../../src/call.ts';
import type { TokenGuess } from '../../src/dispatch/token-estimate.policy.ts';
import { maxModels, TokenEstimates } from '../../src/dispatch/token-estimates.ts';

const plain: TokenGuess = { prompt: 1_000, marked: 0, output: null, apart: false };
const claude: TokenGuess = { prompt: 150_000, marked: 0, output: 4_000, apart: true };
const nothing: Feedback = { meters: [], throttle: null };
const used = (usage: Partial<TokenUsage>): Feedback => ({
  ...nothing,
  usage: { prompt: null, kept: 0, input: null, output: null, total: null, ...usage },
});
const named = (guess: TokenGuess, lane = 'l') => ({ guess, lane });

describe('the estimated tokens of a call', () => {
  test('are the prompt and all allowed output while nothing is known', () => {
    const tokens = new TokenEstimates();
    expect(tokens.expected(named(plain))).toEqual({ tokens: 1_000 });
    expect(tokens.expected(named({ ...plain, output: 5_000 }))).toEqual({ tokens: 6_000 });
  });

  test('follow earlier calls of the same workspace and model, with no more output than the call allows', () => {
    const tokens = new TokenEstimates();
    const response = used({ prompt: 1_200, input: 1_200, output: 300, total: 1_500 });
    const asked = { ...plain, output: 5_000 };
    tokens.learn(named(asked), response, null);
    // One response is no measure of the others.
    expect(tokens.expected(named(asked))).toEqual({ tokens: 6_200 });
    for (let more = 0; more < 120; more += 1) tokens.learn(named(asked), response, null);
    expect(tokens.expected(named(asked))).toEqual({ tokens: 1_501 });
    expect(tokens.expected(named({ ...plain, output: 100 }))).toEqual({ tokens: 1_300 });
    expect(tokens.expected(named({ ...plain, output: 5_000 }, 'elsewhere'))).toEqual({
      tokens: 6_000,
    });
  });

  test('ignore earlier calls where responses state the level, because such a limiter charges what was asked for', () => {
    const tokens = new TokenEstimates();
    const level = { lowest: 1, highest: 2 };
    const stating: Feedback = {
      ...used({ prompt: 1_200, input: 1_200, output: 3, total: 1_203 }),
      meters: [{ meter: 'tokens', limit: 30_000, windowMs: 60_000, level }],
    };
    tokens.learn(named(plain), stating, null);
    expect(tokens.expected(named({ ...plain, output: 5_000 }))).toEqual({ tokens: 6_000 });
  });

  test('leave out output that the provider does not count', () => {
    const tokens = new TokenEstimates();
    tokens.learn(named(plain), used({ prompt: 900, input: 900, output: 500, total: 900 }), null);
    expect(tokens.expected(named({ ...plain, output: 5_000 }))).toEqual({ tokens: 900 });
  });

  test('are split where the provider counts input and output apart', () => {
    const tokens = new TokenEstimates();
    expect(tokens.expected(named({ ...claude, prompt: 2_000 }))).toEqual({
      tokens: 2_001,
      input_tokens: 2_000,
      output_tokens: 1,
    });
    for (const made of Array.from({ length: 80 }, () => 700)) {
      const response = used({ prompt: 2_000, input: 2_000, output: made, total: 2_000 + made });
      tokens.learn(named({ ...claude, prompt: 2_000 }), response, null);
    }
    expect(tokens.expected(named({ ...claude, prompt: 2_000 })).output_tokens).toBeLessThanOrEqual(710);
    const reported: Feedback = {
      ...used({ prompt: 1_000, input: 1_000, output: 50, total: 1_050 }),
      meters: [{ meter: 'input_tokens', limit: 9_000, windowMs: 60_000, level: null }],
    };
    tokens.learn(named(plain, 'proxy'), reported, null);
    expect(tokens.expected(named(plain, 'proxy'))).toEqual({
      tokens: 1_100,
      input_tokens: 1_000,
      output_tokens: 100,
    });
  });
});

describe('the estimated tokens of a call with a cached prompt', () => {
  const marked = { ...claude, marked: 148_000 };
  const kept = used({ prompt: 150_000, kept: 148_000, input: 2_000, output: 100, total: 2_100 });
  const missed = used({ prompt: 150_000, input: 150_000, output: 1, total: 150_001 });

  test('leave out what the call marks for the cache', () => {
    const tokens = new TokenEstimates();
    expect(tokens.expected(named(marked)).input_tokens).toBe(2_000);
    tokens.learn(named(marked), nothing, kept);
    expect(tokens.expected(named(marked)).input_tokens).toBe(2_000);
    expect(tokens.expected(named({ ...marked, prompt: 152_000 })).input_tokens).toBe(4_000);
  });

  test('count the whole prompt where what is marked does not lie in the cache, until it does', () => {
    const tokens = new TokenEstimates();
    tokens.learn(named(marked), nothing, missed);
    expect(tokens.expected(named(marked)).input_tokens).toBe(150_000);
    for (let n = 0; n < 40; n += 1) tokens.learn(named(marked), nothing, kept);
    expect(tokens.expected(named(marked)).input_tokens).toBeLessThan(2_100);
  });

  test('count the share that was counted before, where nothing is marked', () => {
    const tokens = new TokenEstimates();
    tokens.learn(
      named(claude),
      nothing,
      used({ prompt: 150_000, kept: 75_000, input: 75_000, output: 1, total: 75_001 }),
    );
    expect(tokens.expected(named({ ...claude, prompt: 1_000 })).input_tokens).toBe(500);
  });

  test('are remembered for at most 10,000 pairs of workspace and model, those used latest', () => {
    const tokens = new TokenEstimates();
    const response = used({ prompt: 2_000, input: 2_000, output: 50, total: 2_050 });
    for (let n = 0; n < maxModels + 50; n += 1)
      tokens.learn(named({ ...claude, prompt: 1_000 }, `l${n}`), response, null);
    const inputOf = (n: number) => tokens.expected(named({ ...claude, prompt: 1_000 }, `l${n}`)).input_tokens;
    expect([49, 50, maxModels + 49].map(inputOf)).toEqual([1_000, 2_000, 2_000]);
  });
});

describe('the estimated tokens of a call that is charged by rule', () => {
  const asked = { ...plain, output: 400 };
  const refusal = (requestedTokens: number): Feedback => ({
    ...nothing,
    throttle: { kind: 'rate', waitMs: 1_000, meter: 'tokens' },
    requestedTokens,
  });
  const stating: Feedback = {
    ...used({ prompt: 1_000, input: 1_000, output: 30, total: 1_030 }),
    meters: [{ meter: 'tokens', limit: 30_000, windowMs: 60_000, level: { lowest: 1, highest: 2 } }],
  };

  test('are corrected by one refusal, until another one states something else, also over responses between them', () => {
    const tokens = new TokenEstimates();
    tokens.learn(named(asked), refusal(2_400), null);
    expect(tokens.expected(named(asked))).toEqual({ tokens: 2_400 });
    tokens.learn(named(asked), stating, null);
    expect(tokens.expected(named({ ...asked, prompt: 1_200 }))).toEqual({ tokens: 2_600 });
    tokens.learn(named(asked), refusal(1_900), null);
    expect(tokens.expected(named(asked))).toEqual({ tokens: 1_900 });
    // What is reserved too much is given back with the response; less than the rule would be refused.
    tokens.learn(named(asked), refusal(100), null);
    expect(tokens.expected(named(asked))).toEqual({ tokens: 1_400 });
  });

  test('are corrected by a refusal behind the content of a stream, whatever usage stands before it', () => {
    const tokens = new TokenEstimates();
    tokens.learn(named(asked), nothing, { ...used({ prompt: 9, output: 1 }), ...refusal(2_400) });
    expect(tokens.expected(named(asked))).toEqual({ tokens: 2_400 });
    expect(tokens.expected(named(asked, 'elsewhere'))).toEqual({ tokens: 1_400 });
  });

  test('believe a refusal no further than eight times the rule, or what an image adds to a short prompt', () => {
    const tokens = new TokenEstimates();
    tokens.learn(named(asked), refusal(1e9), null);
    expect(tokens.expected(named(asked))).toEqual({ tokens: 8 * 1_400 });
    const short = { ...plain, prompt: 10, output: 0 };
    expect(tokens.expected(named(short))).toEqual({ tokens: 10 + 8_192 });
    tokens.learn(named(short), refusal(1_110), null);
    expect(tokens.expected(named(short))).toEqual({ tokens: 1_110 });
  });

  test('follow the rule again when many responses came after an odd refusal', () => {
    const tokens = new TokenEstimates();
    tokens.learn(named(asked), refusal(9_000), null);
    for (let n = 0; n < 127; n += 1) tokens.learn(named(asked), stating, null);
    expect(tokens.expected(named(asked)).tokens).toBe(9_000);
    tokens.learn(named(asked), stating, null);
    expect(tokens.expected(named(asked)).tokens).toBe(1_400);
  });

  test('are left to responses where they say what was used', () => {
    const tokens = new TokenEstimates();
    const response = used({ prompt: 1_000, input: 1_000, output: 400, total: 1_400 });
    tokens.learn(named(asked), response, null);
    tokens.learn(named(asked), refusal(9_000), null);
    expect(tokens.expected(named(asked))).toEqual({ tokens: 1_400 });
  });
});

test('the estimated tokens of a call are an amount that a meter can hold, whatever responses say', () => {
  const count = fc.oneof(fc.constant(null), fc.nat(1_000_000), fc.constant(1e12));
  const usage = fc.record({ prompt: count, kept: fc.nat(1e9), input: count, output: count, total: count });
  const guess = fc.record({
    prompt: fc.integer({ min: 1, max: 1_000_000 }),
    marked: fc.nat(1_000_000),
    output: fc.oneof(fc.constant(null), fc.nat(1e6)),
    apart: fc.boolean(),
  });
  fc.assert(
    fc.property(guess, fc.array(usage, { maxLength: 5 }), (asked, reported) => {
      const tokens = new TokenEstimates();
      for (const one of reported) tokens.learn(named(asked), nothing, { ...nothing, usage: one });
      for (const units of Object.values(tokens.expected(named(asked)))) {
        expect(Number.isFinite(units) && units >= 0).toBe(true);
      }
    }),
  );
});
