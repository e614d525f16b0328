/**
 * Hundreds of histories of the real admission code against a simulated upstream, with reloads (`simulate.ts` says what is
 * real); in each of them two refusals that stated a time are followed up (`oracle.ts`).
 * `SEED=123` runs one history again, follows up all its refusals and prints it; `SEEDS=20000` runs more than 200 of them, and more than
 * 120 of those with two levels below the bucket.
 */
import { env, stdout } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import { Chance } from './chance.ts';
import { live } from './live.ts';
import { sampleOf } from './oracle.ts';
import { levelsFrom } from './plan-levels.ts';
import { planOf } from './plan.ts';
import { courseOf, livesOf, run } from './simulate.ts';
import { inProcesses, tallyOf, type Tally, type Wrong } from './tally.ts';

const only = env['SEED'] === undefined ? null : Number(env['SEED']);
const count = only === null ? Number(env['SEEDS'] ?? 200) : 1;
const first = only ?? 1;
/** Of callers that take turns within their workspace, and of background calls that go behind all others. */
const levels = Number(env['SEEDS'] ?? 120);
/** Few histories do not reach every situation. */
const reachesAll = count >= 1_000;

/**
 * Found among tens of thousands. A reload states a third of the upstream's quota before any response has come: nobody can know that the
 * first response will raise it, and the wait of a refusal is that of the stated quota (24708). A call that could not be sent gave its slot
 * back, so that its lane was awake and, before others of its class, waited for room (9587). The pilot of a crowd was stopped before it
 * was written: the next call is a pilot, too (8809). The first response raised a limit that a reload had lowered, and what had been
 * counted under the limit of before was forgotten (30791, 31964). A lane of weight 3 in which one call waits was counted with three calls
 * a round, as long as others waited (27627, 50778). A call without room for its cost stood before another workspace's until a background
 * call took its workspace's only place in flight: the other one could go then, and nobody looked (30001445). A grant that went back gave
 * nothing back, because a refusal of long before left open how much the upstream has counted (30010723).
 */
const once = [8_809, 9_587, 24_708, 27_627, 30_791, 31_964, 50_778, 30_001_445, 30_010_723];

/**
 * Followed up to their last refusal. A call that names no caller was refused for the slot of a caller whose turn comes after its own
 * (30010257). Wrong was the judge in 41000081: the first call of a lane came at the very moment at which it found that the wake-up of
 * others was lost.
 */
const onceInFull = [30_010_257, 41_000_081];

/** Situations that the histories must have been in, or the checks above them mean nothing. */
const interesting = [
  'a pilot before a crowd',
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
  'reconfigured while calls wait',
  'queue_full',
  'sent again after a failure',
  'stalled',
  'unauthenticated',
  'wait_expired',
  'wait_too_long',
  'wake-up lost',
];
const interestingLevels = [
  'a background call is due',
  'a background call waits while another goes',
  'callers take turns',
  'reconfigured while calls wait',
  'stalled',
];

describe('admission in simulated histories', () => {
  test(
    `keeps every invariant over ${count} histories, states true waits${reachesAll ? ', and reaches every interesting state' : ''}`,
    async () => {
      const tally = only === null ? await inProcesses('one-process', { first, count }) : await whole(only);
      expect(tally.wrong.map(inWords)).toEqual([]);
      if (only !== null) return;
      const { histories, reached, reloaded, verdicts } = tally;
      expect(histories).toBe(count);
      if (reachesAll) expect(interesting.filter((state) => !reached.includes(state))).toEqual([]);
      expect(reloaded).toBeGreaterThan(count / 2);
      // Most refusals are judged by the actual wait, not excused.
      const judged = (verdicts['true'] ?? 0) + (verdicts['taken meanwhile'] ?? 0);
      expect(judged).toBeGreaterThan(count / 3);
      expect(verdicts['taken meanwhile'] ?? 0).toBeLessThan(judged / 10);
    },
    Math.max(400_000, count * 300),
  );

  test(
    `keeps every invariant with callers and background calls over ${levels} histories, and states true waits`,
    async () => {
      if (only !== null) return;
      const tally = await inProcesses('one-process', { first: levelsFrom, count: levels });
      expect(tally.wrong.map(inWords)).toEqual([]);
      const { histories, reached, verdicts } = tally;
      expect(histories).toBe(levels);
      expect(interestingLevels.filter((state) => !reached.includes(state))).toEqual([]);
      expect(verdicts['true'] ?? 0).toBeGreaterThan(levels / 4);
    },
    Math.max(400_000, levels * 300),
  );

  test('is judged right in the rare histories that once were wrong, or taken for wrong', async () => {
    for (const seed of [...once, ...onceInFull]) {
      const { history, followed } = await live(seed, onceInFull.includes(seed));
      const wrong = [...history.violations, ...followed.wrong];
      expect(wrong.map((each) => `seed ${seed}: ${each}`)).toEqual([]);
    }
  });

  test('is the same in a counterfactual history up to the refusal that it is about', async () => {
    let compared = 0;
    for (let seed = 1; compared < 20; seed += 1) {
      const plan = planOf(seed);
      // With a network between, the refusal was decided a moment earlier than it arrived.
      if (plan.wireMs > 0) continue;
      const { refused: all, log } = await run(plan, true);
      const [refused] = sampleOf(livesOf(plan), all, new Chance(seed));
      if (refused === undefined) continue;
      compared += 1;
      const before = (line: string): boolean => Number(line.split(' ', 1)[0]) < refused.at - 0.01;
      expect((await courseOf(plan, refused)).filter(before)).toEqual(log.filter(before));
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
  [`SEED=${seed} npm test test/simulation/simulation.test.ts, by ${origin}`, ...violations.slice(0, 5)].join(
    '\n',
  );
