/**
 * A provider that states what is left of its tokens to the nearest thousand: a call that leaves as soon as the statement has room for it
 * comes up to half a second too early. Through the real reading of the fields, on virtual time.
 */
import { describe, expect, test } from '@jest/globals';
import type { Feedback } from '../../src/call.ts';
import { learnFrom } from '../../src/dispatch/feedback/learn-from.policy.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { run, type Asked, type Outcome } from './charge-run.ts';

const roundedTo = 1_000;

type Fields = (limit: number, left: number) => Readonly<Record<string, string>>;

const providers: Readonly<Record<string, Fields>> = {
  Anthropic: (limit, left) => ({
    'anthropic-ratelimit-input-tokens-limit': String(limit),
    'anthropic-ratelimit-input-tokens-remaining': String(left),
  }),
  'a provider with fields like those of OpenAI': (limit, left) => ({
    'x-ratelimit-limit-tokens': String(limit),
    'x-ratelimit-remaining-tokens': String(left),
  }),
};

const says =
  (fields: Fields) =>
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

const meterOf = (name: string): 'input_tokens' | 'tokens' =>
  name === 'Anthropic' ? 'input_tokens' : 'tokens';

function outcome(
  name: string,
  seed: number,
  beside: { readonly outsiderShare?: number; readonly lateMs?: () => number } = {},
): Promise<Outcome> {
  const fields = providers[name];
  if (fields === undefined) throw new Error(`no provider ${name}`);
  return run({
    meter: meterOf(name),
    limit: 50_000,
    clients: clients(seed, 8, 30),
    counts: ({ usage }) => ({ first: usage.prompt ?? 0, inAll: usage.prompt ?? 0 }),
    serviceMs: 900,
    states: 'always',
    says: says(fields),
    ...beside,
  });
}

describe.each(Object.keys(providers))('%s states its tokens to the nearest thousand:', (name) => {
  test.each([1, 2, 3, 4])('no call is refused, and 97 %% of the tokens are used (seed %i)', async (seed) => {
    const { refusedAt, refusedAtEntry, ratio } = await outcome(name, seed);
    expect({ refused: refusedAt.length, refusedAtEntry }).toEqual({ refused: 0, refusedAtEntry: 0 });
    expect(1 / ratio).toBeGreaterThanOrEqual(0.97);
  });

  test.each([1, 2, 3, 4])(
    'where every message is read late, as beside two processes that never rest, no call is refused (seed %i)',
    async (seed) => {
      const random = new SeededRandom(seed);
      // A processor's turns are some milliseconds, and a message may miss several of them.
      const lateMs = (): number => (random.next() < 0.2 ? 120 : 12) * random.next();
      const { refusedAt, ratio } = await outcome(name, seed, { lateMs });
      expect(refusedAt).toEqual([]);
      expect(ratio).toBeLessThanOrEqual(1.02);
    },
  );

  test.each([1, 2])(
    'beside others at most one call in 20 is refused at first, and none after ten (seed %i)',
    async (seed) => {
      const { refusedAt, ratio } = await outcome(name, seed, { outsiderShare: 0.3 });
      expect(refusedAt.length).toBeLessThanOrEqual(2);
      expect(1 / ratio).toBeGreaterThanOrEqual(0.95);
    },
  );
});
