/**
 * Runs histories from the command line: `node test/simulation/run.ts FIRST COUNT [log | plain | refused]`. Stops at the first
 * that is wrong and prints it as `seed N, by CLOCK: what`; `log` prints every history's log; `plain` follows up no refusal,
 * `refused` follows up all of them instead of two in each history. The mutation table runs this in copies of the tree.
 */
import { argv, stdout } from 'node:process';
import { Chance } from './chance.ts';
import { sampleOf } from './oracle.ts';
import { followUp } from './follow-up.ts';
import { planOf } from './plan.ts';
import { livesOf, run } from './simulate.ts';

const first = Number(argv[2] ?? 1);
const count = Number(argv[3] ?? 1);
const mode = argv[4] ?? '';
for (let seed = first; seed < first + count; seed += 1) {
  const plan = planOf(seed);
  const { log, violations, refused, origin } = await run(plan, mode === 'log');
  if (mode === 'log') stdout.write(`${log.join('\n')}\n`);
  const lives = livesOf(plan);
  const followed = mode === 'refused' ? refused : sampleOf(lives, refused, new Chance(seed));
  const wrong = mode === 'plain' ? [] : (await followUp(lives, followed)).wrong;
  const found = [...violations, ...wrong];
  if (found.length === 0) continue;
  stdout.write(`seed ${seed}, by ${origin}: ${found[0]} (${found.length} in all)\n`);
  break;
}
