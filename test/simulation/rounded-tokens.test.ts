/** Providers that state what is left of their tokens to the nearest thousand: no call comes too early by the time in which half of that drains. */
import { describe, expect, test } from '@jest/globals';
import type { Feedback } from '../../src/call.ts';
import { learnFrom } from '../../src/dispatch/feedback/learn-from.policy.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { run, type Asked, type Scene } from './charge-run.ts';

type Fields = (limit: number, left: number) => Readonly<Record<string, string>>;

const anthropic: Fields = (limit, left) => ({
  'anthropic-ratelimit-input-tokens-limit': String(limit),
  'anthropic-ratelimit-input-tokens-remaining': String(left),
});
const likeOpenai: Fields = (limit, left) => ({
  'x-ratelimit-limit-tokens': String(limit),
  'x-ratelimit-remaining-tokens': String(left),
});

const says =
  (fields: Fields, roundedTo: number) =>
  (level: number, limit: number): Feedback['meters'] =>
    learnFrom('language-model', {
      status: 200,
      fields: new Map(Object.entries(fields(limit, Math.round((limit - level) / roundedTo) * roundedTo))),
      body: null,
      callClass: 'default',
      nowMs: 0,
    }).meters;

/** Calls of several sizes, charged what they ask for. */
function clients(seed: number, count: number, calls: number): readonly (readonly Asked[])[] {
  const random = new SeededRandom(seed);
  return Array.from({ length: count }, () =>
    Array.from({ length: calls }, (): Asked => {
      const prompt = 300 + Math.round(random.next() * 1_700);
      const guess = { prompt, marked: 0, output: null, apart: true };
      const usage = { prompt, kept: 0, input: prompt, output: 50, total: prompt };
      return { guess, usage };
    }),
  );
}

const providers = [
  { name: 'Anthropic', fields: anthropic, meter: 'input_tokens' as const, roundedTo: 1_000 },
  ...[250, 500, 1_000, 2_000].map((roundedTo) => {
    const name = 'a provider with fields like those of OpenAI';
    return { name, fields: likeOpenai, meter: 'tokens' as const, roundedTo };
  }),
];

describe.each(providers)(
  '$name states its tokens to the nearest $roundedTo:',
  ({ fields, meter, roundedTo }) => {
    const outcome = (seed: number, beside: Partial<Scene> = {}) =>
      run({
        meter,
        limit: 50_000,
        clients: clients(seed, 8, 30),
        counts: ({ usage }) => ({ first: usage.prompt ?? 0, inAll: usage.prompt ?? 0 }),
        serviceMs: 900,
        states: 'always',
        says: says(fields, roundedTo),
        ...beside,
      });

    test.each([1, 2])('no call is refused, and 97 %% of the tokens are used (seed %i)', (seed) => {
      const { refusedAt, refusedAtEntry, ratio } = outcome(seed);
      expect([refusedAt, refusedAtEntry]).toEqual([[], 0]);
      expect(1 / ratio).toBeGreaterThanOrEqual(0.97);
    });

    test.each([1, 2])(
      'nor is one where every message is read late, as on a busy machine (seed %i)',
      (seed) => {
        const random = new SeededRandom(seed);
        // A processor's turns are some milliseconds, and a message may miss several of them.
        const lateMs = (): number => (random.next() < 0.2 ? 120 : 12) * random.next();
        const { refusedAt, ratio } = outcome(seed, { lateMs });
        expect(refusedAt).toEqual([]);
        expect(ratio).toBeLessThanOrEqual(1.02);
      },
    );

    test.each([1, 2])(
      'beside others at most one call in 20 is refused at first, and none after ten (seed %i)',
      (seed) => {
        const { refusedAt, ratio } = outcome(seed, { outsiderShare: 0.3 });
        expect(refusedAt.length).toBeLessThanOrEqual(2);
        expect(1 / ratio).toBeGreaterThanOrEqual(0.95);
      },
    );
  },
);
