/**
 * Thousands of histories of the real admission code against a simulated upstream (`simulate.ts` says what is real).
 * `SEED=123` runs one history again and prints it; `SEEDS=10000` runs more of them.
 */
import { env } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import { simulate, type History } from './simulate.ts';

const only = env['SEED'] === undefined ? null : Number(env['SEED']);
const count = only === null ? Number(env['SEEDS'] ?? 3_000) : 1;
const first = only ?? 1;

/** Situations that the histories must have been in, or the checks above them mean nothing. */
const interesting = [
  'absorbed',
  'bucket closed',
  'cap blocks a lane',
  'ceiling refused',
  'ceiling used up',
  'client left while waiting',
  'client left with a grant under way',
  'daily ceiling refused',
  'day_quota_exhausted',
  'grant before its caller waited',
  'last place under the ceiling taken',
  'lease expired',
  'left the edge of the ceiling',
  'place given back',
  'probes doubled',
  'queue_full',
  'sent again after a failure',
  'stalled',
  'unauthenticated',
  'wait_expired',
  'wait_too_long',
  'wake-up lost',
];

describe('the admission of calls', () => {
  test(
    `keeps every invariant over ${count} histories and reaches every interesting state`,
    async () => {
      const reached = new Set<string>();
      const wrong: string[] = [];
      for (let seed = first; seed < first + count && wrong.length < 3; seed += 1) {
        const history = await simulate(seed);
        for (const state of history.reached.keys()) reached.add(state);
        if (history.violations.length > 0) wrong.push(told(seed, history));
      }
      expect(wrong).toEqual([]);
      if (only === null) expect(interesting.filter((state) => !reached.has(state))).toEqual([]);
    },
    Math.max(400_000, count * 150),
  );

  test('the same seed gives the same history', async () => {
    for (const seed of [17, 4_711]) {
      const [one, other] = [await simulate(seed), await simulate(seed)];
      expect(one.log.length).toBeGreaterThan(20);
      expect(other.log).toEqual(one.log);
    }
  });
});

function told(seed: number, { violations, log, origin }: History): string {
  const story = only === null ? [] : log;
  return [
    `SEED=${seed} npm test test/simulation/simulation.test.ts, by ${origin}`,
    ...violations.slice(0, 5),
    ...story,
  ].join('\n');
}
