import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Feedback, TokenUsage } from '../../src/call.ts';
import { cacheLifeMs, type TokenGuess } from '../../src/dispatch/token-estimate.policy.ts';
import { maxBeginnings, maxModels, TokenEstimates } from '../../src/dispatch/token-estimates.ts';
import { manualClock } from '../support/manual-clock.ts';

const plain: TokenGuess = { prompt: 1_000, marked: 0, output: null, apart: false };
const claude: TokenGuess = { prompt: 150_000, marked: 0, output: 4_000, apart: true };
const nothing: Feedback = { meters: [], throttle: null };
const used = (usage: Partial<TokenUsage>): Feedback => ({
  ...nothing,
  usage: { prompt: null, kept: 0, input: null, output: null, total: null, ...usage },
});
const named = (guess: TokenGuess, beginning: string | null = 'b', lane = 'l') => ({ guess, lane, beginning });

function estimates() {
  const clock = manualClock();
  return { clock, tokens: new TokenEstimates(clock) };
}

describe('the estimated tokens of a call', () => {
  test('are the prompt and all allowed output while nothing is known', () => {
    const { tokens } = estimates();
    expect(tokens.expected(named(plain))).toEqual({ tokens: 1_000 });
    expect(tokens.expected(named({ ...plain, output: 5_000 }))).toEqual({ tokens: 6_000 });
  });

  test('follow earlier calls of the same workspace and model, with no more output than the call allows', () => {
    const { tokens } = estimates();
    const response = used({ prompt: 1_200, input: 1_200, output: 300, total: 1_500 });
    const asked = { ...plain, output: 5_000 };
    tokens.learn(named(asked), response, null);
    // One response is no measure of the others.
    expect(tokens.expected(named(asked, 'other'))).toEqual({ tokens: 6_200 });
    for (let more = 0; more < 120; more += 1) tokens.learn(named(asked), response, null);
    expect(tokens.expected(named(asked, 'other'))).toEqual({ tokens: 1_501 });
    expect(tokens.expected(named({ ...plain, output: 100 }, 'other'))).toEqual({ tokens: 1_300 });
    expect(tokens.expected(named({ ...plain, output: 5_000 }, 'other', 'elsewhere'))).toEqual({
      tokens: 6_000,
    });
  });

  test('ignore earlier calls where responses state the level, because such a limiter charges what was asked for', () => {
    const { tokens } = estimates();
    const level = { lowest: 1, highest: 2 };
    const stating: Feedback = {
      ...used({ prompt: 1_200, input: 1_200, output: 3, total: 1_203 }),
      meters: [{ meter: 'tokens', limit: 30_000, windowMs: 60_000, level }],
    };
    tokens.learn(named(plain), stating, null);
    expect(tokens.expected(named({ ...plain, output: 5_000 }))).toEqual({ tokens: 6_000 });
  });

  test('leave out output that the provider does not count', () => {
    const { tokens } = estimates();
    tokens.learn(named(plain), used({ prompt: 900, input: 900, output: 500, total: 900 }), null);
    expect(tokens.expected(named({ ...plain, output: 5_000 }))).toEqual({ tokens: 900 });
  });

  test('are split where the provider counts input and output apart', () => {
    const { tokens } = estimates();
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
    tokens.learn(named(plain, null, 'proxy'), reported, null);
    expect(tokens.expected(named(plain, null, 'proxy'))).toEqual({
      tokens: 1_100,
      input_tokens: 1_000,
      output_tokens: 100,
    });
  });
});

describe('the estimated tokens of a call with a cached prompt', () => {
  const kept = used({ prompt: 150_000, kept: 148_000, input: 2_000, output: 100, total: 2_100 });

  test('count only the new part of the prompt, also when it has grown', () => {
    const { tokens } = estimates();
    tokens.learn(named(claude), nothing, kept);
    expect(tokens.expected(named(claude)).input_tokens).toBe(2_000);
    expect(tokens.expected(named({ ...claude, prompt: 152_000 })).input_tokens).toBe(4_000);
  });

  test('count the whole prompt again when the cache has forgotten it', () => {
    const { tokens, clock } = estimates();
    tokens.learn(named(claude), nothing, kept);
    clock.advance(cacheLifeMs - 1);
    expect(tokens.expected(named(claude)).input_tokens).toBe(2_000);
    clock.advance(1);
    expect(tokens.expected(named(claude)).input_tokens).toBe(150_000);
  });

  test('leave out the prompt up to the cache mark for a call with a new beginning', () => {
    const { tokens } = estimates();
    expect(tokens.expected(named({ ...claude, marked: 148_000 })).input_tokens).toBe(2_000);
    tokens.learn(
      named(claude),
      nothing,
      used({ prompt: 150_000, input: 150_000, output: 1, total: 150_001 }),
    );
    expect(tokens.expected(named({ ...claude, marked: 148_000 })).input_tokens).toBe(150_000);
  });

  test('are corrected by one refusal that states how much was asked for', () => {
    const { tokens } = estimates();
    tokens.learn(named(claude), nothing, kept);
    const throttle = { kind: 'rate', waitMs: 1_000, meter: 'input_tokens' } as const;
    tokens.learn(named(claude), { ...nothing, throttle, requestedTokens: 90_000 }, null);
    expect(tokens.expected(named(claude)).input_tokens).toBe(90_000);
  });

  test('are remembered for at most 10,000 prompts, those used latest', () => {
    const { tokens } = estimates();
    for (let n = 0; n < maxBeginnings + 50; n += 1) {
      tokens.learn(named(claude, `b${n}`), nothing, kept);
      // A prompt that is asked for all the time stays.
      tokens.expected(named(claude, 'b0'));
    }
    const inputOf = (n: number) => tokens.expected(named(claude, `b${n}`)).input_tokens;
    expect([0, 50, 51, maxBeginnings + 49].map(inputOf)).toEqual([2_000, 2_001, 2_000, 2_000]);
  });

  test('are remembered for at most 10,000 pairs of workspace and model', () => {
    const { tokens } = estimates();
    const response = used({ prompt: 2_000, input: 2_000, output: 50, total: 2_050 });
    for (let n = 0; n < maxModels + 50; n += 1) {
      tokens.learn(named({ ...claude, prompt: 1_000 }, null, `l${n}`), response, null);
    }
    const inputOf = (n: number) =>
      tokens.expected(named({ ...claude, prompt: 1_000 }, null, `l${n}`)).input_tokens;
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
    const { tokens } = estimates();
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
    const { tokens } = estimates();
    tokens.learn(named(asked), nothing, { ...used({ prompt: 9, output: 1 }), ...refusal(2_400) });
    expect(tokens.expected(named(asked))).toEqual({ tokens: 2_400 });
    expect(tokens.expected(named(asked, 'other'))).toEqual({ tokens: 1_400 });
  });

  test('follow the refusals of other beginnings part of the way, where a prompt begins like none before', () => {
    const { tokens } = estimates();
    tokens.learn(named(asked), stating, null);
    for (let n = 0; n < 30; n += 1) tokens.learn(named(asked, `b${n}`), refusal(2_400), null);
    expect(tokens.expected(named(asked, 'new')).tokens).toBeGreaterThan(2_390);
    expect(tokens.expected(named(asked, 'new', 'elsewhere')).tokens).toBe(1_400);
  });

  test('believe a refusal no further than eight times the rule, or what an image adds to a short prompt', () => {
    const { tokens } = estimates();
    tokens.learn(named(asked), refusal(1e9), null);
    expect(tokens.expected(named(asked))).toEqual({ tokens: 8 * 1_400 });
    const short = { ...plain, prompt: 10, output: 0 };
    tokens.learn(named(short, 'short'), refusal(1_110), null);
    expect(tokens.expected(named(short, 'short'))).toEqual({ tokens: 1_110 });
    tokens.learn(named(short, 'short'), refusal(1e9), null);
    expect(tokens.expected(named(short, 'short'))).toEqual({ tokens: 10 + 8_192 });
  });

  test('follow the rule again for other beginnings, when many responses came after an odd refusal', () => {
    const { tokens } = estimates();
    tokens.learn(named(asked), stating, null);
    tokens.learn(named(asked, 'odd'), refusal(9_000), null);
    expect(tokens.expected(named(asked, 'new')).tokens).toBeGreaterThan(3_000);
    for (let n = 0; n < 300; n += 1) tokens.learn(named(asked, `b${n}`), stating, null);
    expect(tokens.expected(named(asked, 'new')).tokens).toBeLessThan(1_430);
  });

  test('are left to responses where they say what was used', () => {
    const { tokens } = estimates();
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
      const { tokens } = estimates();
      for (const one of reported) tokens.learn(named(asked), nothing, { ...nothing, usage: one });
      for (const units of Object.values(tokens.expected(named(asked)))) {
        expect(Number.isFinite(units) && units >= 0).toBe(true);
      }
    }),
  );
});
