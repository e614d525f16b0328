/**
 * `npm run verify:cluster [-- <words of a scenario's name>]`: three replicas as processes over real Redis servers, and
 * every fault that the limiter promises to survive. Prints one table row per scenario and a last line with the counts.
 */
import { groups, type Scenario } from './cluster/scenarios.ts';
import { endAll } from './cluster/processes.ts';
import { redisBinary } from '../test/support/redis.ts';

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

console.log('| scenario | result | figures |\n|---|---|---|');
const binary = await redisBinary().catch((failure: unknown) => String(failure));
for (const group of groups) {
  const chosen = group.filter(({ name }) => wanted === '' || name.includes(wanted));
  if (binary.startsWith('/')) await Promise.all(chosen.map(row));
  else tally.skipped += chosen.length;
}
if (!binary.startsWith('/')) console.log(`skipped: ${binary}`);
await endAll();
console.log(`cluster: ${tally.passed} passed, ${tally.failed} failed, ${tally.skipped} skipped`);
process.exit(tally.failed === 0 ? 0 : 1);
