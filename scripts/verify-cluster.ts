/**
 * `npm run verify:cluster [-- <words of a scenario's name>]`: three replicas as processes over real Redis servers, and
 * every fault that the limiter promises to survive. Prints one table row per scenario and a last line with the counts;
 * exit code 1 when a promise was broken. Under ten minutes.
 */
import { redisBinary } from '../test/support/redis.ts';
import { endAll } from './cluster/processes.ts';
import type { Scenario } from './cluster/row.ts';
import { stages } from './cluster/scenarios.ts';
import { stalls } from './cluster/stalls.ts';

const wanted = process.argv.slice(2).join(' ');
const tally = { passed: 0, failed: 0, skipped: 0 };

async function row(scenario: Scenario): Promise<void> {
  const { passed, figures } = await scenario.run().catch((failure: unknown) => ({
    passed: false,
    figures: failure instanceof Error ? failure.message.replaceAll('\n', ' ') : String(failure),
  }));
  tally[passed ? 'passed' : 'failed'] += 1;
  console.log(`| ${scenario.name} | ${passed ? 'passed' : 'FAILED'} | ${figures} |`);
}

async function inTurn(track: readonly Scenario[]): Promise<void> {
  for (const scenario of track) await row(scenario);
}

const binary = await redisBinary().catch((failure: unknown) => String(failure));
const isThere = binary.startsWith('/');
if (isThere) {
  stalls.start();
  console.log('| scenario | result | figures |\n|---|---|---|');
} else console.log(`skipped: ${binary}`);
for (const stage of stages) {
  const chosen = stage.map((track) => track.filter(({ name }) => wanted === '' || name.includes(wanted)));
  if (isThere) await Promise.all(chosen.map(inTurn));
  else tally.skipped += chosen.flat().length;
}
await endAll();
console.log(`cluster: ${tally.passed} passed, ${tally.failed} failed, ${tally.skipped} skipped`);
process.exit(tally.failed === 0 ? 0 : 1);
