/**
 * Thousands of histories of the real admission code against a simulated upstream, with reloads (`simulate.ts` says what is
 * real); in each of them two refusals that stated a time are followed up (`oracle.ts`).
 * `SEED=123` runs one history again, follows up all its refusals and prints it; `SEEDS=20000` runs more than 200 of them.
 */
import { env } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import { Chance } from './chance.ts';
import { followUp, type FollowedUp } from './follow-up.ts';
import { sampleOf, type Verdict } from './oracle.ts';
import { planOf } from './plan.ts';
import { courseOf, livesOf, run, simulate, type History } from './simulate.ts';

const only = env['SEED'] === undefined ? null : Number(env['SEED']);
const count = only === null ? Number(env['SEEDS'] ?? 200) : 1;
const first = only ?? 1;
/** Few histories do not reach every situation. */
const reachesAll = count >= 1_000;

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

interface Followed {
  readonly history: History;
  readonly followed: FollowedUp;
}

async function live(seed: number): Promise<Followed> {
  const plan = planOf(seed);
  const history = await run(plan);
  const lives = livesOf(plan);
  const refused = only === null ? sampleOf(lives, history.refused, new Chance(seed)) : history.refused;
  return { history, followed: await followUp(lives, refused) };
}

/** Removes the wait of a daily ceiling, which the library counts by the machine's own clock. */
const timeless = (line: string): string => line.replace(/( day_quota_exhausted) \d+$/, '$1');

describe('admission in simulated histories', () => {
  test(
    `keeps every invariant over ${count} histories, states true waits${reachesAll ? ', and reaches every interesting state' : ''}`,
    async () => {
      const reached = new Set<string>();
      const verdicts = new Map<Verdict['kind'], number>();
      const wrong: string[] = [];
      let reloaded = 0;
      for (let seed = first; seed < first + count && wrong.length < 3; seed += 1) {
        const { history, followed } = await live(seed);
        for (const state of history.reached.keys()) reached.add(state);
        if (history.reached.has('reconfigured')) reloaded += 1;
        for (const [kind, times] of followed.verdicts) verdicts.set(kind, (verdicts.get(kind) ?? 0) + times);
        const violations = [...history.violations, ...followed.wrong];
        if (violations.length > 0) wrong.push(refused(seed, history, violations));
      }
      expect(wrong).toEqual([]);
      if (only !== null) return;
      if (reachesAll) expect(interesting.filter((state) => !reached.has(state))).toEqual([]);
      expect(reloaded).toBeGreaterThan(count / 2);
      // Most refusals are judged by the actual wait, not excused.
      const judged = (verdicts.get('true') ?? 0) + (verdicts.get('taken meanwhile') ?? 0);
      expect(judged).toBeGreaterThan(count / 3);
      expect(verdicts.get('taken meanwhile') ?? 0).toBeLessThan(judged / 10);
    },
    Math.max(400_000, count * 300),
  );

  test('is the same for the same seed', async () => {
    for (const seed of [17, 4_711]) {
      const [one, other] = [await simulate(seed), await simulate(seed)];
      expect(one.log.length).toBeGreaterThan(20);
      expect(other.log).toEqual(one.log);
    }
  });

  test('is the same in a counterfactual history up to the refusal that it is about', async () => {
    let compared = 0;
    for (let seed = 1; compared < 40; seed += 1) {
      const plan = planOf(seed);
      // With a network between, the refusal was decided a moment earlier than it arrived.
      if (plan.wireMs > 0) continue;
      const { refused: all, log } = await run(plan);
      const [refused] = sampleOf(livesOf(plan), all, new Chance(seed));
      if (refused === undefined) continue;
      compared += 1;
      const before = (line: string): boolean => Number(line.split(' ', 1)[0]) < refused.at - 0.01;
      expect((await courseOf(plan, refused)).filter(before).map(timeless)).toEqual(
        log.filter(before).map(timeless),
      );
    }
  });
});

function refused(seed: number, { log, origin }: History, violations: readonly string[]): string {
  const story = only === null ? [] : log;
  return [
    `SEED=${seed} npm test test/simulation/simulation.test.ts, by ${origin}`,
    ...violations.slice(0, 5),
    ...story,
  ].join('\n');
}
