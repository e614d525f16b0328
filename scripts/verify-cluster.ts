/**
 * `npm run verify:cluster [-- <words of a scenario's name>]`: makespan and order of whole bursts over three replicas as processes and a
 * real Redis. Prints one table row per scenario and a last line with the counts; exit code 1 when a promise was broken.
 */
import { redisBinary } from '../test/support/redis.ts';
import { bursts } from './cluster/bursts.ts';
import { closing } from './cluster/closing.ts';
import { oneDocument } from './cluster/costs.ts';
import { outsider } from './cluster/outsider.ts';
import { levels } from './cluster/levels.ts';
import { margins } from './cluster/margins.ts';
import { endAll } from './cluster/processes.ts';
import { rehearsal } from './cluster/rehearsal.ts';
import { reservations } from './cluster/reservations.ts';
import { judge, type Row, type Run, type Scenario, type Verdict } from './cluster/row.ts';
import { stalls } from './cluster/stalls.ts';
import { record } from './nightly/figures.ts';

/** One after the other, but for the last ones, which mostly wait. */
const scenarios: readonly Scenario[] = [...bursts, outsider, ...levels, ...margins];
const waiting: readonly Scenario[] = [closing, ...oneDocument, ...reservations];
/** Only where it is named: it compares times of two runs, for which nothing else may run beside it. */
const onlyNamed: readonly Scenario[] = [rehearsal];
const wanted = process.argv.slice(2).join(' ');
const isWanted = ({ name }: Scenario): boolean => name.includes(wanted);
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

const binary = await redisBinary().catch((failure: unknown) => String(failure));
if (binary.startsWith('/')) {
  stalls.start();
  console.log('| scenario | result | figures |\n|---|---|---|');
  const named = wanted === '' ? [] : onlyNamed;
  for (const scenario of [...scenarios, ...named].filter(isWanted)) await row(scenario);
  await Promise.all(waiting.filter(isWanted).map(row));
  await endAll();
} else {
  console.log(`skipped: ${binary}`);
  tally.skipped += [...scenarios, ...waiting].filter(isWanted).length;
}
console.log(`cluster: ${tally.passed} passed, ${tally.failed} failed, ${tally.skipped} skipped`);
process.exit(tally.failed === 0 ? 0 : 1);
