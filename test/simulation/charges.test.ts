/** Token budgets before a provider that counts what calls really use: how much longer calls take than its quota allows, and how many it refuses. */
import { describe, expect, test } from '@jest/globals';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { run as runOver, type Asked, type Scene } from './charge-run.ts';

describe.each([1, 3])('with %d replicas,', (replicas) => {
  const run = (scene: Scene) => runOver(scene, replicas);
  /** All calls leave, within 5 % of the time that the limit demands, but for so many refusals; none is refused at its entry. */
  const expectAll = (scene: Scene, maxRefused: number) => {
    const outcome = run(scene);
    expect(outcome.refusedAt.length).toBeLessThanOrEqual(maxRefused);
    expect(outcome.refusedAtEntry).toBe(0);
    expect(outcome.ratio).toBeLessThanOrEqual(1.05);
    return outcome;
  };
  const rows = ['with', 'without'].flatMap((how) => [1, 2, 3, 4].map((seed) => [how, seed] as const));
  test.each(rows)(
    'calls of 200 to 5,000 tokens %s max_tokens use 95 %% of 30,000 a minute without reported levels (seed %i)',
    (how, seed) => {
      const random = new SeededRandom(seed);
      const sized = (): Asked => {
        const all = Math.round(200 + random.next() * 4_800);
        const prompt = Math.max(100, Math.round(all * 0.6));
        const output = how === 'with' ? 5_000 - prompt : null;
        const usage = { prompt, kept: 0, input: prompt, output: all - prompt, total: all };
        return { guess: { prompt, marked: 0, output, apart: false }, usage };
      };
      const { refusedAt, firstResponseAt, ratio } = run({
        meter: 'tokens',
        limit: 30_000,
        clients: Array.from({ length: 6 }, () => Array.from({ length: 30 }, sized)),
        // All tokens that a call will have used are counted when it arrives, so that a call that reserved less is refused.
        counts: ({ usage: { total } }) => ({ first: total ?? 0, inAll: total ?? 0 }),
        serviceMs: 3_000,
      });
      expect(refusedAt.filter((at) => at > firstResponseAt)).toEqual([]);
      expect(1 / ratio).toBeGreaterThanOrEqual(0.95);
    },
  );

  describe('on 50,000 counted input tokens a minute, five agents with 148,000 cached of 150,000 prompt tokens', () => {
    const agents = Array.from({ length: 5 }, (_, agent) =>
      Array.from({ length: 20 }, (): Asked => {
        const guess = { prompt: 150_000, marked: 148_000, output: 4_000, apart: true };
        const usage = { prompt: 150_000, kept: 148_000, input: 2_000, output: 200, total: 2_200 };
        return { guess, agent, usage };
      }),
    );
    const scene = { meter: 'input_tokens', limit: 50_000, clients: agents, serviceMs: 1_500 } as const;

    test('take at most 1.05 of the optimum, and no call is refused', () => {
      expectAll({ ...scene, counts: () => ({ first: 2_000, inAll: 2_000 }) }, 0);
    });

    test('are refused at most twice when a cache is lost', () => {
      // One agent's cache is gone after a minute: its next call costs 40,000, then the prompt is cached again.
      let written = false;
      const counts = ({ agent }: Asked, now: number): { first: number; inAll: number } => {
        const isCold = now > 60_000 && agent === 2 && !written;
        return isCold ? { first: 40_000, inAll: 40_000 } : { first: 2_000, inAll: 2_000 };
      };
      const { refusedAt, refusedAtEntry } = run({
        ...scene,
        counts,
        reported: (asked, inAll) => {
          written ||= inAll > 2_000;
          return { ...asked.usage, input: inAll, total: inAll + 200 };
        },
      });
      expect(refusedAt.length).toBeLessThanOrEqual(2);
      expect(refusedAtEntry).toBeLessThanOrEqual(1);
    });
  });

  /** Calls that are charged what they ask for, and whose responses state the level. `output`: tokens that they make of it. */
  const charged = (calls: number, clients: number, output = 100): readonly (readonly Asked[])[] => {
    const guess = { prompt: 600, marked: 0, output: 400, apart: false };
    const usage = { prompt: 600, kept: 0, input: 600, output, total: 600 + output };
    return Array<readonly Asked[]>(clients).fill(Array<Asked>(calls).fill({ guess, usage }));
  };
  const asked = {
    meter: 'tokens',
    limit: 30_000,
    counts: () => ({ first: 1_000, inAll: 1_000 }),
    serviceMs: 1_000,
    states: 'always',
  } as const;

  test.each([
    ['halved', 15_000, 2],
    ['doubled', 60_000, 0],
  ])(
    'a limit that is %s while calls wait is taken over with the next responses',
    (_says, limit, maxRefused) => {
      expectAll({ ...asked, changes: [{ at: 60_000, limit }], clients: charged(20, 6) }, maxRefused);
    },
  );

  const beforeContent = { part: 'before content', afterMs: 200 } as const;
  const behindContent = { part: 'behind content', afterMs: 400, keeps: 600 } as const;
  test.each([
    ['absorbed before their content', 'always', beforeContent],
    ['absorbed before their content', 'when refusing', beforeContent],
    ['passed behind content', 'always', behindContent],
    ['passed behind content', 'when refusing', behindContent],
  ] as const)(
    'a limit that is halved is taken over as fast where refusals inside streams are %s, and it is stated %s',
    (_says, states, refusesIn) => {
      const changes = [{ at: 60_000, limit: 15_000 }];
      const clients = charged(20, 6, 400);
      const { refusedAt, passedOn } = expectAll({ ...asked, states, changes, refusesIn, clients }, 2);
      expect(refusedAt.length).toBeGreaterThan(0);
      expect(passedOn).toBe(refusesIn.part === 'behind content' ? refusedAt.length : 0);
    },
  );

  test.each([
    ['at once', undefined],
    ['in a stream before its content', beforeContent],
    ['in a stream behind its content', { ...behindContent, keeps: 0 }],
  ] as const)(
    'a provider that charges more than its rule refuses few calls, and says so %s',
    (_where, refusesIn) => {
      // Calls are taken to be charged 1,000.
      const counts = () => ({ first: 1_900, inAll: 1_900 });
      expectAll({ ...asked, counts, ...(refusesIn && { refusesIn }), clients: charged(20, 6) }, 6);
    },
  );

  test('a limit of which somebody else takes 30 % is used to the rest', () => {
    expectAll({ ...asked, outsiderShare: 0.3, clients: charged(20, 6) }, 2);
  });

  test('output that is counted when it is made holds calls before the limit refuses them', () => {
    const clients = Array.from({ length: 4 }, (_, client) =>
      Array.from({ length: 40 }, (_call, n): Asked => {
        const output = 600 + ((n * 7 + client * 13) % 9) * 100;
        const guess = { prompt: 100, marked: 0, output: 4_000, apart: true };
        const usage = { prompt: 100, kept: 0, input: 100, output, total: 100 + output };
        return { guess, usage };
      }),
    );
    const { refusedAt, firstResponseAt, ratio } = run({
      meter: 'output_tokens',
      limit: 20_000,
      clients,
      // A call is let in while less than the limit is used.
      counts: ({ usage }) => ({ first: 1, inAll: usage.output ?? 0 }),
      serviceMs: 4_000,
    });
    expect(refusedAt.filter((at) => at > firstResponseAt)).toEqual([]);
    expect(ratio).toBeLessThanOrEqual(1.05);
  });
});
