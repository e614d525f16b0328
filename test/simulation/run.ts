/**
 * Runs histories from the command line: `node test/simulation/run.ts FIRST COUNT [log]`. Stops at the first that is
 * wrong and prints it as `seed N, by CLOCK: what`; `log` prints every history's log. The mutation table runs this in copies of
 * the tree.
 */
import { argv, stdout } from 'node:process';
import { simulate } from './simulate.ts';

const first = Number(argv[2] ?? 1);
const count = Number(argv[3] ?? 1);
for (let seed = first; seed < first + count; seed += 1) {
  const { log, violations, origin } = await simulate(seed);
  if (argv[4] === 'log') stdout.write(`${log.join('\n')}\n`);
  if (violations.length === 0) continue;
  stdout.write(`seed ${seed}, by ${origin}: ${violations[0]} (${violations.length} in all)\n`);
  break;
}
