/** How a row of the cluster verification is judged by what it found, and by what the machine did meanwhile. */
import { execFile } from 'node:child_process';
import { execPath } from 'node:process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, test } from '@jest/globals';
import { judge, type Row, type Run } from '../../scripts/cluster/row.ts';

const kept: Row = { holds: true, figures: 'kept' };
const inTime: Row = { holds: true, holdsWhenQuiet: true, figures: 'in time' };
const late: Row = { holds: true, holdsWhenQuiet: false, figures: 'late' };
const lost: Row = { holds: false, holdsWhenQuiet: true, figures: 'lost' };
const quiet = (row: Row): Run => ({ row, excuse: null });
const stalled = (row: Row): Run => ({ row, excuse: 'the machine stalled for 90 ms' });

/** The verdict on these runs, and how many of them took place. */
async function verdictOn(runs: readonly Run[]) {
  let count = 0;
  const verdict = await judge(async () => {
    const run = runs[count];
    if (run === undefined) throw new Error('one run too many');
    count += 1;
    return run;
  });
  return { ...verdict, count };
}

describe('a row', () => {
  test.each<[string, readonly Run[], string]>([
    ['that keeps everything', [quiet(kept)], 'passed'],
    ['that keeps its times', [quiet(inTime)], 'passed'],
    ['that keeps everything while the machine stalls', [stalled(inTime)], 'passed'],
    ['that is late on a quiet machine', [quiet(late)], 'failed'],
    ['that loses a call on a quiet machine', [quiet(lost)], 'failed'],
    ['that is late while the machine stalls, and then is not', [stalled(late), quiet(inTime)], 'passed'],
    ['that is late, again on a quiet machine', [stalled(late), quiet(late)], 'failed'],
    ['that is late twice while the machine stalls', [stalled(late), stalled(late)], 'not judged'],
    ['that loses a call twice while the machine stalls', [stalled(lost), stalled(lost)], 'failed'],
    ['that is late, then loses a call, while the machine stalls', [stalled(late), stalled(lost)], 'failed'],
  ])('%s', async (_what, runs, result) => {
    const verdict = await verdictOn(runs);
    expect([verdict.result, verdict.count]).toEqual([result, runs.length]);
    for (const { row } of runs) expect(verdict.figures).toContain(row.figures);
  });

  test('says what the machine did, whatever became of it', async () => {
    for (const row of [kept, late, lost]) {
      const { figures } = await verdictOn([stalled(row), stalled(row)]);
      expect(figures).toContain('the machine stalled for 90 ms');
    }
  });

  test('hands on the figures of the run that was judged', async () => {
    const measured = (value: number) => [{ name: 'makespan', value, unit: '× optimum' }];
    const runs = [stalled({ ...late, measured: measured(2) }), quiet({ ...inTime, measured: measured(1) })];
    expect((await verdictOn(runs)).measured).toEqual(measured(1));
  });
});

describe('the machine', () => {
  test('is the excuse of a row during which the client did not run, and not of one that began later', async () => {
    const folder = fileURLToPath(new URL('../../scripts/cluster/', import.meta.url));
    // In a process of its own: what it measures is whether that process runs.
    const source = `
      import { stalls } from '${folder}stalls.ts';
      import { endAll } from '${folder}processes.ts';
      stalls.start();
      const before = stalls.mark();
      // Again and again: the first tick of the histogram only begins to measure, and on a busy machine it may come late.
      for (let attempt = 0; attempt < 20 && stalls.clientSince(before) < 200; attempt += 1) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        for (const until = performance.now() + 300; performance.now() < until; );
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      const found = [stalls.clientSince(before) >= 200, stalls.excuseSince(before)];
      console.log(JSON.stringify([...found, stalls.clientSince(stalls.mark() + 1)]));
      await endAll();
      process.exit();`;
    const { stdout } = await promisify(execFile)(execPath, ['--input-type=module', '--eval', source]);
    expect(JSON.parse(stdout)).toEqual([true, expect.stringMatching(/^the machine stalled for \d+ ms$/), 0]);
  });
});
