/**
 * `node test/simulation/run-tally.ts one-process|replicas FIRST COUNT`: lives so many histories and writes what came of them
 * as JSON (`tally.ts`).
 */
import { argv, stdout } from 'node:process';
import { live as inOneProcess } from './live.ts';
import { live as overReplicas } from './replicas/live.ts';
import { tallyOf } from './tally.ts';

const [form = '', first, count] = argv.slice(2);
const forms = new Map<string, Parameters<typeof tallyOf>[0]>([
  ['one-process', inOneProcess],
  ['replicas', overReplicas],
]);
stdout.write(
  JSON.stringify(
    await tallyOf(forms.get(form) ?? inOneProcess, { first: Number(first), count: Number(count) }),
  ),
);
