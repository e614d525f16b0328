/**
 * `npm run verify:gate [-- <words of a row's name>]`: three replicas as processes over real Redis servers, and one fault in each of
 * twelve rows, judged by what must hold on any machine: nothing lost, nothing sent twice, the ceiling held in every window, one
 * serialized call in flight, order kept, nothing left behind. Nothing is judged by how fast it was; `verify:cluster` does that.
 * Exit code 1 when a promise was broken.
 */
import { systemClock } from '../src/clock.ts';
import { endAll } from './fleet/processes.ts';
import { stalls } from './fleet/stalls.ts';
import { run, type Judged, type Row } from './gate/row.ts';
import { tracks } from './gate/rows.ts';

const wanted = process.argv.slice(2).join(' ');
let failures = 0;

async function runAndPrint(row: Row): Promise<void> {
  const startedAt = systemClock.monotonic();
  const { violations, words } = await run(row).catch((failure: unknown): Judged => ({
    violations: [failure instanceof Error ? (failure.stack ?? failure.message) : String(failure)],
    words: 'the row did not run to its end',
  }));
  if (violations.length > 0) failures += 1;
  const took = `${((systemClock.monotonic() - startedAt) / 1_000).toFixed(0)} s`;
  console.log(`${violations.length === 0 ? 'holds ' : 'BROKEN'}  ${row.name} (${took}): ${words}`);
  for (const violation of violations.slice(0, 20)) console.log(`        ${violation}`);
}

stalls.start();
const chosen = tracks.map((track) => track.filter(({ name }) => name.includes(wanted)));
await Promise.all(
  chosen.map(async (track) => {
    for (const row of track) await runAndPrint(row);
  }),
);
await endAll();
const count = chosen.flat().length;
console.log(`gate: ${count - failures} of ${count} rows hold`);
process.exit(failures === 0 && count > 0 ? 0 : 1);
