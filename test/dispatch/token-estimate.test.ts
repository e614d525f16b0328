import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Feedback, TokenUsage } from '../../src/call.ts';
import { cacheLifeMs, type TokenGuess } from '../../src/dispatch/token-estimate.policy.ts';
import { maxBeginnings, TokenEstimates } from '../../src/dispatch/token-estimates.ts';
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
    const answer = used({ prompt: 1_200, input: 1_200, output: 300, total: 1_500 });
    const asked = { ...plain, output: 5_000 };
    tokens.learn(named(asked), answer, null);
    // One answer is no measure of the others.
    expect(tokens.expected(named(asked, 'other'))).toEqual({ tokens: 6_200 });
    for (let more = 0; more < 120; more += 1) tokens.learn(named(asked), answer, null);
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
      const answer = used({ prompt: 2_000, input: 2_000, output: made, total: 2_000 + made });
      tokens.learn(named({ ...claude, prompt: 2_000 }), answer, null);
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

  test('are remembered for at most 10,000 prompts', () => {
    const { tokens } = estimates();
    for (let n = 0; n < maxBeginnings + 50; n += 1) tokens.learn(named(claude, `b${n}`), nothing, kept);
    expect(tokens.size).toBe(maxBeginnings);
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
