/**
 * `npm run verify:cluster [-- [--long | --all] <words of a scenario's name>]`: three replicas as processes over real Redis servers,
 * and every fault that the limiter promises to survive. Prints one table row per scenario and a last line with the counts; exit code
 * 1 when a promise was broken. A quarter of an hour; `--long` runs the rows that take minutes each instead, `--all` both.
 */
import { redisBinary } from '../test/support/redis.ts';
import { endAll } from './cluster/processes.ts';
import { judge, type Row, type Run, type Scenario, type Verdict } from './cluster/row.ts';
import { long, stages } from './cluster/scenarios.ts';
import { stalls } from './cluster/stalls.ts';
import { record } from './nightly/figures.ts';

const isAll = process.argv.includes('--all');
const isLong = process.argv.includes('--long');
const wanted = process.argv
  .slice(2)
  .filter((word) => !word.startsWith('--'))
  .join(' ');
const chosenStages = isAll ? [...stages, ...long] : isLong ? long : stages;
const tally = { passed: 0, failed: 0, skipped: 0 };
const inWords = {
  passed: ['passed', 'passed'],
  failed: ['FAILED', 'failed'],
  'not judged': ['not judged', 'skipped'],
} as const satisfies Record<Verdict['result'], readonly [string, keyof typeof tally]>;

const brokenOff = (failure: unknown): Row => ({
  holds: false,
  figures: failure instanceof Error ? failure.message.replaceAll('\n', ' ') : String(failure),
});

/** Whatever a row is about, the machine is watched while it runs. */
async function runOnce(scenario: Scenario): Promise<Run> {
  const since = stalls.mark();
  const row = await scenario.run().catch(brokenOff);
  return { row, excuse: stalls.excuseSince(since) };
}

async function row(scenario: Scenario): Promise<void> {
  const { result, figures, measured } = await judge(() => runOnce(scenario));
  const [words, counted] = inWords[result];
  tally[counted] += 1;
  record(...measured.map((figure) => ({ ...figure, name: `${scenario.name}: ${figure.name}` })));
  console.log(`| ${scenario.name} | ${words} | ${figures} |`);
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
if (!isLong && !isAll) {
  const names = long.flat(2).map(({ name }) => name);
  console.log(`not run, because they take minutes each (--long runs them): ${names.join('; ')}`);
}
console.log(`cluster: ${tally.passed} passed, ${tally.failed} failed, ${tally.skipped} skipped`);
process.exit(tally.failed === 0 ? 0 : 1);
