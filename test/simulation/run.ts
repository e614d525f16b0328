/**
 * Runs histories from the command line: `node test/simulation/run.ts FORM FIRST COUNT [log] [all] [plain | refused]`, where FORM
 * is `upstreams`, `faults` or `steady`. Stops at the first that is wrong and prints it as `seed N, by CLOCK: what`; `all` goes on; `log`
 * prints every history's log; `plain` follows up no refusal, `refused` follows up all of them. `jobs` lives what a parent asks for.
 */
import process, { argv, stdout } from 'node:process';
import { live, liveMany, type Job } from './live.ts';
import type { Form } from './plan.ts';

const [form = 'upstreams', first = '1', count = '1', ...words] = argv.slice(2);
const modes = new Set(words);
const [from, wanted] = [Number(first), Number(count)];
if (form === 'jobs')
  process.on('message', (job: Job) => void liveMany(job).then((told) => process.send?.(told)));
else await print();

async function print(): Promise<void> {
  for (let seed = from; seed < from + wanted; seed += 1) {
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
