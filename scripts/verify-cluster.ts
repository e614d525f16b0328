/**
 * `npm run verify:cluster [-- <words of a row's name>]`: makespan and order of whole bursts over replicas as processes and a
 * real Redis. Prints one table row per row and a last line with the counts; exit code 1 when a promise was broken.
 */
import { bursts } from './cluster/bursts.ts';
import { judge } from './cluster/row.ts';
import { endAll } from './fleet/processes.ts';
import { noRedis } from './fleet/redis.ts';
import { stalls } from './fleet/stalls.ts';
import { record } from './nightly/figures.ts';

const wanted = process.argv.slice(2).join(' ');
const rows = bursts.filter(({ name }) => name.includes(wanted));
const tally = { passed: 0, failed: 0, skipped: 0 };
const inWords = { passed: 'passed', failed: 'FAILED', skipped: 'not judged' };

const why = await noRedis();
if (why === null) {
  stalls.start();
  console.log('| row | result | figures |\n|---|---|---|');
  for (const row of rows) {
    const { result, words, measured } = await judge(row);
    tally[result] += 1;
    record(...measured.map((figure) => ({ ...figure, name: `${row.name}: ${figure.name}` })));
    console.log(`| ${row.name} | ${inWords[result]} | ${words} |`);
  }
  await endAll();
} else {
  console.log(`skipped: ${why}`);
  tally.skipped += rows.length;
}
console.log(`cluster: ${tally.passed} passed, ${tally.failed} failed, ${tally.skipped} skipped`);
process.exit(tally.failed === 0 ? 0 : 1);
