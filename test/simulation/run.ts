/**
 * Runs histories from the command line: `node test/simulation/run.ts FORM FIRST COUNT [log] [all] [plain | refused | tally]`, where FORM
 * is `upstreams` or `faults`. Stops at the first that is wrong and prints it as `seed N, by CLOCK: what`; `all` goes on; `log` prints
 * every history's log; `plain` follows up no refusal, `refused` follows up all of them; `tally` writes what came of them all as JSON.
 */
import { argv, stdout } from 'node:process';
import { live } from './live.ts';
import type { Form } from './plan.ts';
import { tallyOf } from './tally.ts';

const [form = 'upstreams', first = '1', count = '1', ...words] = argv.slice(2);
const modes = new Set(words);
const range = { first: Number(first), count: Number(count) };
if (modes.has('tally')) stdout.write(JSON.stringify(await tallyOf(form as Form, range)));
else await print();

async function print(): Promise<void> {
  for (let seed = range.first; seed < range.first + range.count; seed += 1) {
    const { history, wrong } = await live(form as Form, seed, {
      keepsLog: modes.has('log'),
      followed: modes.has('plain') ? 'none' : modes.has('refused') ? 'all' : 'some',
    });
    if (modes.has('log')) stdout.write(`${history.log.join('\n')}\n`);
    if (wrong.length === 0) continue;
    stdout.write(`seed ${seed}, by ${history.origin}: ${wrong[0]} (${wrong.length} in all)\n`);
    if (!modes.has('all')) return;
  }
}
