import { describe, expect, test } from '@jest/globals';
import type { Feedback, TokenUsage } from '../../src/call.ts';
import { spentOf } from '../../src/dispatch/feedback/usage.policy.ts';
import { createMeter, settleUnits, take } from '../../src/limiter/policy/meter.policy.ts';
import { applySetting } from '../../src/limiter/policy/meter-quota.policy.ts';
import { levelAt } from '../../src/limiter/policy/meter.policy.ts';

const usage: TokenUsage = { prompt: 90, kept: 0, input: 90, output: 10, total: 100 };
const all = { tokens: 100, tokens_day: 100, input_tokens: 90, output_tokens: 10 };
const nothing: Feedback = { meters: [], throttle: null };
const stating = (level: Feedback['meters'][number]['level']): Feedback => ({
  meters: [{ meter: 'tokens', limit: 30_000, windowMs: 60_000, level }],
  throttle: null,
});

describe('the units that a call has spent', () => {
  test('are what usage says, in the head or in the body', () => {
    expect(spentOf(200, { ...nothing, usage }, null)).toEqual(all);
    expect(spentOf(200, nothing, { ...nothing, usage })).toEqual(all);
    expect(spentOf(200, nothing, null)).toBeNull();
  });

  test('are left to the level that the fields state, except for meters that the fields do not name', () => {
    expect(spentOf(200, { ...stating({ lowest: 1, highest: 2 }), usage }, null)).toEqual({
      tokens_day: 100,
      input_tokens: 90,
      output_tokens: 10,
    });
    expect(spentOf(200, { ...stating(null), usage }, null)).toEqual(all);
  });

  test('are not guessed where the total is not stated', () => {
    expect(
      spentOf(200, { ...nothing, usage: { ...usage, total: null, input: null, output: null } }, null),
    ).toBeNull();
  });

  test('are none for a refused call, and unknown for one that failed', () => {
    expect(spentOf(422, nothing, null)).toEqual({
      tokens: 0,
      tokens_day: 0,
      input_tokens: 0,
      output_tokens: 0,
      images: 0,
    });
    expect(spentOf(500, nothing, null)).toBeNull();
  });
});

describe('a settled reservation', () => {
  const limit = 30_000;
  const started = (reserved: number) => {
    const meter = createMeter('tokens', 0);
    applySetting(meter, { stated: { limit, windowMs: 60_000 }, learn: true }, 0);
    if (reserved > 0) take(meter, { units: reserved, inTransit: [] }, 0);
    return meter;
  };

  test('gives back at once what was reserved too much', () => {
    const meter = started(5_000);
    settleUnits(meter, { reserved: 5_000, spent: 10, grantedAt: 0 }, 100);
    expect(levelAt(meter, 100)).toBeCloseTo(10, 6);
  });

  test('charges what was reserved too little', () => {
    const meter = started(20);
    settleUnits(meter, { reserved: 20, spent: 20_000, grantedAt: 0 }, 500);
    expect(levelAt(meter, 500)).toBeCloseTo(20_000, 0);
  });

  test('gives back nothing that has drained, because the meter was empty since', () => {
    const meter = started(5_000);
    settleUnits(meter, { reserved: 0, spent: 0, grantedAt: 0 }, 30_000);
    take(meter, { units: 4_000, inTransit: [] }, 30_000);
    settleUnits(meter, { reserved: 5_000, spent: 10, grantedAt: 0 }, 30_000);
    expect(levelAt(meter, 30_000)).toBe(4_000);
  });

  test('charges one call no more than the limit, and all calls no more than drains in two windows', () => {
    const meter = started(0);
    for (let call = 0; call < 10; call += 1) {
      settleUnits(meter, { reserved: 0, spent: 1e9, grantedAt: 0 }, 0);
      expect(levelAt(meter, 0)).toBeLessThanOrEqual(Math.min((call + 1) * limit, 2 * limit));
    }
    expect(levelAt(meter, 0)).toBe(2 * limit);
  });
});
