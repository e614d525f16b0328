/**
 * Runs histories of several replicas: `node test/simulation/replicas/run.ts FIRST COUNT [log] [all] [plain | refused]`. Stops
 * at the first that is wrong and prints it as `seed N, by CLOCK: what`; `all` goes on; `log` prints every history's log. `plain` follows up no refusal, `refused` all of them instead of two in each history.
 */
import { argv, stdout } from 'node:process';
import { Chance } from '../chance.ts';
import { followUp } from '../follow-up.ts';
import { sampleOf, type Lives } from '../oracle.ts';
import { reservingFrom } from '../plan-levels.ts';
import type { RefusedCall } from '../refused-call.ts';
import { livesOf } from './lives.ts';
import { replicasPlanOf } from './plan.ts';
import { run } from './simulate.ts';

const first = Number(argv[2] ?? 1);
const count = Number(argv[3] ?? 1);
const modes = new Set(argv.slice(4));
for (let seed = first; seed < first + count; seed += 1) {
  const plan = replicasPlanOf(seed);
  const { log, violations, refused, origin } = await run(plan, modes.has('log'));
  if (modes.has('log')) stdout.write(`${log.join('\n')}\n`);
  // Who comes back when depends on what was told: another course is another history.
  const isFollowed = seed < reservingFrom && !modes.has('plain');
  const wrong = isFollowed ? await wrongWaits(livesOf(plan), refused, seed) : [];
  const found = [...violations, ...wrong];
  if (found.length === 0) continue;
  stdout.write(`seed ${seed}, by ${origin}: ${found[0]} (${found.length} in all)\n`);
  if (!modes.has('all')) break;
}

async function wrongWaits(
  lives: Lives,
  refused: readonly RefusedCall[],
  seed: number,
): Promise<readonly string[]> {
  const followed = modes.has('refused') ? refused : sampleOf(lives, refused, new Chance(seed));
  return (await followUp(lives, followed)).wrong;
}
