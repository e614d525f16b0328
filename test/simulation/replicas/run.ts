/**
 * Runs histories of several replicas: `node test/simulation/replicas/run.ts FIRST COUNT [log | all]`. Stops at the first
 * that is wrong and prints it as `seed N, by CLOCK: what`; `log` prints every history's log, `all` goes on.
 */
import { argv, stdout } from 'node:process';
import { simulateReplicas } from './simulate.ts';

const first = Number(argv[2] ?? 1);
const count = Number(argv[3] ?? 1);
for (let seed = first; seed < first + count; seed += 1) {
  const { log, violations, origin } = await simulateReplicas(seed, argv[4] === 'log');
  if (argv[4] === 'log') stdout.write(`${log.join('\n')}\n`);
  if (violations.length === 0) continue;
  stdout.write(`seed ${seed}, by ${origin}: ${violations[0]} (${violations.length} in all)\n`);
  if (argv[4] !== 'all') break;
}
