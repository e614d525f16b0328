/**
 * Histories of several replicas on one Redis, with faults and reloads (`simulate.ts` says what is real), and in each of them a refusal
 * that stated a time is followed up (`../oracle.ts`).
 * `SEED=123` runs one history again, follows up all its refusals and prints it; `SEEDS=20000` runs more than 60 of them.
 */
import { env, stdout } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import { inProcesses, type Wrong } from '../tally.ts';
import { live } from './live.ts';
import { replicatedFrom } from './plan.ts';

const only = env['SEED'] === undefined ? null : Number(env['SEED']);
const count = Number(env['SEEDS'] ?? 60);

/** Histories that once went wrong, and are not among the first 60. */
const once = [
  90, 433, 1_148, 1_250, 1_305, 1_566, 10_000_043, 10_000_342, 10_001_944, 20_000_200, 20_000_267,
];

/** Situations that the histories must have been in, or the checks above them mean nothing. */
const interesting = [
  'bucket closed',
  'ceiling used up',
  'entered again',
  'fault cut',
  'fault failover',
  'fault flush',
  'fault hang',
  'fault kill',
  'fault pause',
  'mode local',
  'place given back',
  'reconfigured while calls wait',
];

describe('several replicas on one Redis', () => {
  test(
    `keep every invariant over ${count} histories with faults and reloads, and state true waits`,
    async () => {
      if (only !== null) return expect(await whole(only)).toEqual([]);
      const tally = await inProcesses('replicas', { first: 1, count });
      expect(tally.wrong.map(inWords)).toEqual([]);
      expect(tally.histories).toBe(count);
      if (count >= 80) expect(interesting.filter((state) => !tally.reached.includes(state))).toEqual([]);
      expect(tally.reloaded).toBeGreaterThan(count / 4);
    },
    Math.max(400_000, count * 800),
  );

  test.each(once)('keep every invariant in the history that once went wrong: %d', async (seed) => {
    const { history, followed } = await live(seed);
    expect([...history.violations, ...followed.wrong]).toEqual([]);
  });

  test(
    'keep every invariant while Redis is backed up, replicated and promoted',
    async () => {
      const tally = await inProcesses('replicas', { first: replicatedFrom, count: count / 4 });
      expect(tally.wrong.map(inWords)).toEqual([]);
    },
    Math.max(400_000, count * 400),
  );
});

/** With its story, and all its refusals followed up. */
async function whole(seed: number): Promise<string[]> {
  const { history, followed } = await live(seed, true);
  stdout.write(`${history.log.join('\n')}\n`);
  return [...history.violations, ...followed.wrong];
}

const inWords = ({ seed, origin, violations }: Wrong): string =>
  [
    `SEED=${seed} npm test test/simulation/replicas/replicas.test.ts, by ${origin}`,
    ...violations.slice(0, 5),
  ].join('\n');
