/**
 * Hundreds of histories of several replicas on one Redis, with faults and reloads (`simulate.ts` says what is real), and in
 * each of them a refusal that stated a time is followed up (`../oracle.ts`).
 * `SEED=123` runs one history again, follows up all its refusals and prints it; `SEEDS=20000` runs more than 200 of them.
 */
import { env, stdout } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import { inProcesses, tallyOf, type Tally, type Wrong } from '../tally.ts';
import { live } from './live.ts';
import { replicatedFrom, steadyPlanOf } from './plan.ts';
import { run, simulateReplicas } from './simulate.ts';

const only = env['SEED'] === undefined ? null : Number(env['SEED']);
const count = only === null ? Number(env['SEEDS'] ?? 200) : 1;
const first = only ?? 1;
/** Few histories do not reach every situation. */
const reachesAll = count >= 1_200;

/**
 * Found among tens of thousands: unused grants gave their turn back late (8282, 16832, 18791), an admission granted others
 * before it entered its own ticket (16838), only an absent replica knew of its sends (14860), tickets that came too late for
 * anybody were handed back one by one (16053). A grant came by message, or a reply was read, behind news of a loss (20491,
 * 26958, 30383, 47776), the reply to an admission stayed out (24291, 36073), other tickets or leases stood in the count for
 * those that Redis had lost (30415, 56974), a dropped grant took its ticket along (63147), a failover
 * forgot a closing (82229), a replica its own (97465), a call was refused before it waited (50733).
 */
const once = [
  8_282, 14_860, 16_053, 16_832, 16_838, 18_791, 20_491, 24_291, 26_958, 30_383, 30_415, 36_073, 47_776,
  50_733, 56_974, 63_147, 82_229, 97_465,
];

/**
 * Found among tens of thousands, with reloads: a configured limit below what responses stated was filled by their levels (5056,
 * 14430), and what the upstream had counted was forgotten while replicas differed in their configuration (5262, 10594). A slot of a
 * ceiling that a call gave back stayed free for a minute: its lane slept where it had been refused before (2314), or on a replica that took its own note for newer (2716).
 * Arriving calls that were not on their way yet brought back the settings of before a reload (13025). A new replica took an emptied Redis
 * for a first start, and sent beside a call that was in flight (13391). A scan that was planned before a reload asked by the limits of
 * then, and an arriving call was refused by what it had read (14432). Without Redis, three grants of a lane were returned in turn for ever, at one
 * instant, and the process did nothing else (4024: such a history never ends). A grant that was kept from its call ran out while its
 * process stalled, and was never handed over or given back (2881, 11554). The waiting calls of a killed replica counted as ahead of
 * those of others until they came to the head of their lane (19588). A grant that Redis had made before the last replica had entered
 * its tickets again came after that, and overtook a call (5483). A slot that a call gave back was free for a minute, because the lanes that
 * waited for it were in other buckets (15885).
 * Wrong was the judge in 9119, where responses state whole seconds of a window of one; and in 2458: a replica without Redis cannot
 * know what left under an earlier, higher ceiling.
 */
const onceReloaded = [
  2_314, 2_458, 2_716, 2_881, 4_024, 5_056, 5_262, 5_483, 9_119, 10_594, 11_554, 13_025, 13_391, 14_430,
  14_432, 15_885, 19_588,
];

/**
 * A backup, a replica of Redis that attached or was promoted, and one more Sluice starting, let the replicas declare epochs for as
 * long as the history went on, although nothing was lost: 40 (20000024), 169, 246, 174, 130. In 20000026 and 20000076 calls held grants that
 * they could not use.
 */
const onceReplicated = [20_000_024, 20_000_026, 20_000_036, 20_000_065, 20_000_071, 20_000_076, 20_000_094];

/** Situations that the histories must have been in, or the checks above them mean nothing. */
const interesting = [
  'bucket closed',
  'ceiling used up',
  'entered again',
  'events in one batch',
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
  'suspicion epoch',
  'suspicion expired',
  'suspicion stalled',
  'suspicion unavailable',
  'unauthenticated',
  'wait_expired',
  'wait_too_long',
];

describe('several replicas on one Redis', () => {
  test(
    `keep every invariant over ${count} histories with faults, state true waits${reachesAll ? ', and reach every interesting state' : ''}`,
    async () => {
      const tally = only === null ? await inProcesses('replicas', { first, count }) : await whole(only);
      expect(tally.wrong.map(inWords)).toEqual([]);
      if (only !== null) return;
      const { histories, reached, reloaded, verdicts } = tally;
      expect(histories).toBe(count);
      if (reachesAll) expect(interesting.filter((state) => !reached.includes(state))).toEqual([]);
      expect(reloaded).toBeGreaterThan(count / 2);
      const judged = (verdicts['true'] ?? 0) + (verdicts['taken meanwhile'] ?? 0);
      expect(judged).toBeGreaterThan(count / 5);
    },
    Math.max(400_000, count * 800),
  );

  test('keep every invariant in the rare histories that once broke one', async () => {
    for (const seed of once) {
      // These seeds broke an invariant without reloads.
      const history = await run(steadyPlanOf(seed));
      expect(history.violations.map((each) => `seed ${seed}: ${each}`)).toEqual([]);
    }
  });

  test(
    'take no data for lost that is there, while Redis is backed up and replicated',
    async () => {
      const histories = count / 2;
      const tally = await inProcesses('replicas', { first: replicatedFrom, count: histories });
      expect(tally.wrong.map(inWords)).toEqual([]);
      expect(tally.reached).toEqual(
        expect.arrayContaining(['fault cut', 'fault promote', 'fault replicate', 'fault start']),
      );
    },
    Math.max(400_000, count * 400),
  );

  test('take no data for lost in histories in which they did so without end', async () => {
    for (const seed of onceReplicated) {
      const history = await simulateReplicas(seed);
      expect(history.violations.map((each) => `seed ${seed}: ${each}`)).toEqual([]);
    }
  });

  test('keep every invariant in the rarer histories with reloads that once broke one', async () => {
    for (const seed of onceReloaded) {
      const history = await simulateReplicas(seed);
      expect(history.violations.map((each) => `seed ${seed}: ${each}`)).toEqual([]);
    }
  });
});

/** With its story, and all its refusals followed up. */
async function whole(seed: number): Promise<Tally> {
  const { history, followed } = await live(seed, true);
  stdout.write(`${history.log.join('\n')}\n`);
  return tallyOf(() => Promise.resolve({ history, followed }), { first: seed, count: 1 });
}

const inWords = ({ seed, origin, violations }: Wrong): string =>
  [
    `SEED=${seed} npm test test/simulation/replicas/replicas.test.ts, by ${origin}`,
    ...violations.slice(0, 5),
  ].join('\n');
