/** One history of a seed over several replicas, and its refusals followed up. */
import { Chance } from '../chance.ts';
import { followUp } from '../follow-up.ts';
import type { Lived } from '../live.ts';
import { sampleOf } from '../oracle.ts';
import { reservingFrom } from '../plan-levels.ts';
import { livesOf } from './lives.ts';
import { replicasPlanOf } from './plan.ts';
import { run, type ReplicasHistory } from './simulate.ts';

/** @param isWhole keeps the log, and follows up all refusals instead of one. */
export async function live(seed: number, isWhole = false): Promise<Lived<ReplicasHistory>> {
  const plan = replicasPlanOf(seed);
  const history = await run(plan, isWhole);
  // Who comes when depends there on what was told: another course is another history.
  if (seed >= reservingFrom) return { history, followed: { wrong: [], verdicts: new Map() } };
  const lives = livesOf(plan);
  const [longest, other] = sampleOf(lives, history.refused, new Chance(seed));
  const one = seed % 2 === 0 ? longest : other;
  const refused = isWhole ? history.refused : history.refused.filter((each) => each === one);
  return { history, followed: await followUp(lives, refused) };
}
