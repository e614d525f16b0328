/**
 * Histories of several replicas on one Redis, with faults and reloads (`simulate.ts` says what is real), and in each of them a refusal
 * that stated a time is followed up (`../oracle.ts`).
 * `SEED=123` runs one history again, follows up all its refusals and prints it; `SEEDS=20000` runs more than 40 of them.
 */
import { env, stdout } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import { levelsFrom, reservingFrom } from '../plan-levels.ts';
import { inProcesses, type Wrong } from '../tally.ts';
import { live } from './live.ts';
import { replicatedFrom, steadyPlanOf } from './plan.ts';
import { run } from './simulate.ts';

const only = env['SEED'] === undefined ? null : Number(env['SEED']);
const count = Number(env['SEEDS'] ?? 40);
/** Few histories do not reach every situation. */
const reachesAll = count >= 600;

/** Histories that once went wrong, with the limiter of today or the one before, and are not among the first 40. */
const once = [
  90, 400, 433, 627, 1_148, 1_250, 1_305, 1_335, 1_566, 2_314, 2_458, 2_716, 2_881, 4_024, 5_056, 5_262,
  5_483, 9_119, 10_594, 11_554, 13_025, 13_391, 14_430, 14_432, 15_885, 19_588, 10_000_043, 10_000_342,
  10_001_944, 20_000_024, 20_000_026, 20_000_036, 20_000_065, 20_000_071, 20_000_076, 20_000_094, 20_000_200,
  20_000_267,
];

/** The same without reloads. */
const onceSteady = [
  8_282, 14_860, 16_053, 16_832, 16_838, 18_791, 20_491, 24_291, 26_958, 30_383, 30_415, 36_073, 47_776,
  50_733, 56_974, 63_147, 82_229, 97_465,
];

/** Situations that the histories must have been in, or the checks above them mean nothing. */
const interesting = [
  'bucket closed',
  'ceiling used up',
  'entered again',
  'fault cut',
  'fault down',
  'fault failover',
  'fault flush',
  'fault hang',
  'fault kill',
  'fault pause',
  'fault step',
  'lease lost before sending',
  'limiter_unavailable',
  'mode deny',
  'mode local',
  'overlap',
  'place given back',
  'place taken again',
  'reconfigured while calls wait',
  'sent again after a failure',
  'sent without Redis',
  'stopped before a write',
  'suspicion expired',
  'suspicion stalled',
  'suspicion unavailable',
  'unauthenticated',
  'wait_expired',
  'wait_too_long',
];

/** What the histories of calls within their workspaces must have been through. */
const disturbances = [
  'fault cut',
  'fault down',
  'fault failover',
  'fault flush',
  'fault hang',
  'fault kill',
  'fault pause',
  'fault step',
  'reconfigured while calls wait',
];

describe('several replicas on one Redis', () => {
  test(
    `keep every invariant over ${count} histories with faults and reloads, state true waits${reachesAll ? ', and reach every interesting state' : ''}`,
    async () => {
      if (only !== null) return expect(await whole(only)).toEqual([]);
      const tally = await inProcesses('replicas', { first: 1, count });
      expect(tally.wrong.map(inWords)).toEqual([]);
      expect(tally.histories).toBe(count);
      if (reachesAll) expect(interesting.filter((state) => !tally.reached.includes(state))).toEqual([]);
      expect(tally.reloaded).toBeGreaterThan(count / 2);
      const { verdicts } = tally;
      const judged = (verdicts['true'] ?? 0) + (verdicts['taken meanwhile'] ?? 0);
      expect(judged).toBeGreaterThan(count / 8);
    },
    Math.max(400_000, count * 800),
  );

  test.each(once)('keep every invariant in the history that once went wrong: %d', async (seed) => {
    const { history, followed } = await live(seed);
    expect([...history.violations, ...followed.wrong]).toEqual([]);
  });

  test.each(onceSteady)(
    'keep every invariant in the steady history that once went wrong: %d',
    async (seed) => {
      expect((await run(steadyPlanOf(seed))).violations).toEqual([]);
    },
  );

  test(
    'keep every invariant with callers, background calls, faults and reloads',
    async () => {
      const tally = await inProcesses('replicas', { first: levelsFrom, count: count / 2 });
      expect(tally.wrong.map(inWords)).toEqual([]);
      const levels = [
        'a background call is due',
        'a background call waits while another goes',
        'callers take turns',
      ];
      expect(tally.reached).toEqual(expect.arrayContaining([...disturbances, ...levels]));
    },
    Math.max(400_000, count * 800),
  );

  test(
    'keep every invariant while clients of refused calls come back, with callers, background calls, faults and reloads',
    async () => {
      const tally = await inProcesses('replicas', { first: reservingFrom, count: count / 2 });
      expect(tally.wrong.map(inWords)).toEqual([]);
      const levels = [
        'a background call is due',
        'came back',
        'position kept',
        'went for its reservation before callers and background calls',
      ];
      expect(tally.reached).toEqual(expect.arrayContaining([...disturbances, ...levels]));
    },
    Math.max(400_000, count * 800),
  );

  test(
    'keep every invariant while Redis is backed up, replicated and promoted',
    async () => {
      const tally = await inProcesses('replicas', { first: replicatedFrom, count: count / 4 });
      expect(tally.wrong.map(inWords)).toEqual([]);
      expect(tally.reached).toEqual(
        expect.arrayContaining(['fault cut', 'fault promote', 'fault replicate', 'fault start']),
      );
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
