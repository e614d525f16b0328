/** One history of a seed in one process, and its refusals followed up. */
import { Chance } from './chance.ts';
import { followUp, type FollowedUp } from './follow-up.ts';
import { sampleOf } from './oracle.ts';
import { planOf } from './plan.ts';
import { livesOf, run, type History } from './simulate.ts';

export interface Lived<H> {
  readonly history: H;
  readonly followed: FollowedUp;
}

/** @param isWhole keeps the log, and follows up all refusals instead of two. */
export async function live(seed: number, isWhole = false): Promise<Lived<History>> {
  const plan = planOf(seed);
  const history = await run(plan, isWhole);
  const lives = livesOf(plan);
  const refused = isWhole ? history.refused : sampleOf(lives, history.refused, new Chance(seed));
  return { history, followed: await followUp(lives, refused) };
}
