/**
 * `npm run verify:cluster [-- [--long] <words of a scenario's name>]`: three replicas as processes over real Redis servers, and
 * every fault that the limiter promises to survive. Prints one table row per scenario and a last line with the counts;
 * exit code 1 when a promise was broken. A quarter of an hour.
 */
import { redisBinary } from '../test/support/redis.ts';
import { endAll } from './cluster/processes.ts';
import { quietMs, type Row, type Scenario } from './cluster/row.ts';
import { long, stages } from './cluster/scenarios.ts';
import { stalls } from './cluster/stalls.ts';

const isLong = process.argv.includes('--long');
const wanted = process.argv
  .slice(2)
  .filter((word) => !word.startsWith('--'))
  .join(' ');
const chosenStages = isLong ? long : stages;
const tally = { passed: 0, failed: 0, skipped: 0 };

const runOnce = (scenario: Scenario): Promise<Row> =>
  scenario.run().catch((failure: unknown) => ({
    passed: false,
    figures: failure instanceof Error ? failure.message.replaceAll('\n', ' ') : String(failure),
  }));

/** A row that failed while the machine stalled is run once more, and says so. */
async function run(scenario: Scenario): Promise<Row> {
  const first = await runOnce(scenario);
  if (first.passed !== false || (first.stalledMs ?? 0) <= quietMs) return first;
  const second = await runOnce(scenario);
  const isBusy = second.passed === false && (second.stalledMs ?? 0) > quietMs;
  return {
    ...second,
    passed: isBusy && scenario.needsQuiet === true ? null : second.passed,
    figures: `${second.figures}; run before, while the machine stalled: ${first.figures}`,
  };
}

function inWords(passed: Row['passed']): readonly [string, keyof typeof tally] {
  if (passed === null) return ['not judged: the machine is too busy', 'skipped'];
  return passed ? ['passed', 'passed'] : ['FAILED', 'failed'];
}

async function row(scenario: Scenario): Promise<void> {
  const { passed, figures } = await run(scenario);
  const [result, counted] = inWords(passed);
  tally[counted] += 1;
  console.log(`| ${scenario.name} | ${result} | ${figures} |`);
}

async function oneByOne(track: readonly Scenario[]): Promise<void> {
  for (const scenario of track) await row(scenario);
}

const binary = await redisBinary().catch((failure: unknown) => String(failure));
const isThere = binary.startsWith('/');
if (isThere) {
  stalls.start();
  console.log('| scenario | result | figures |\n|---|---|---|');
} else console.log(`skipped: ${binary}`);
for (const stage of chosenStages) {
  const chosen = stage.map((track) => track.filter(({ name }) => wanted === '' || name.includes(wanted)));
  if (isThere) await Promise.all(chosen.map(oneByOne));
  else tally.skipped += chosen.flat().length;
}
await endAll();
if (!isLong) {
  const names = long.flat(2).map(({ name }) => name);
  console.log(`not run, because they take minutes each (--long runs them): ${names.join('; ')}`);
}
console.log(`cluster: ${tally.passed} passed, ${tally.failed} failed, ${tally.skipped} skipped`);
process.exit(tally.failed === 0 ? 0 : 1);
