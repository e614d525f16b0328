/** slowhttptest with slow heads, bodies and reads: others are answered meanwhile, and afterwards. */
import { stripVTControlCharacters } from 'node:util';
import type { Report } from '../observability/report.ts';
import type { Demo } from './demo.ts';
import { fromDebian, ran } from './tools.ts';

const connections = 1_000;
const seconds = 20;
const attacks = [
  ['heads', ['-H']],
  ['bodies', ['-B']],
  ['reads', ['-X']],
] as const;

/** Asks every 50 ms until `over`; how long each answer took, and how many were not 200. */
async function meanwhile(demo: Demo, over: Promise<unknown>): Promise<{ tookMs: number[]; failed: number }> {
  let isOver = false;
  void over.then(() => (isOver = true));
  const headers = { authorization: `Bearer ${demo.key}` };
  const tookMs: number[] = [];
  let failed = 0;
  while (!isOver) {
    const at = performance.now();
    const answer = await fetch(`${demo.data}/activity`, { headers }).catch(() => null);
    await answer?.arrayBuffer();
    if (answer?.status === 200) tookMs.push(performance.now() - at);
    else failed += 1;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return { tookMs: tookMs.toSorted((a, b) => a - b), failed };
}

export async function judgeBySlowhttptest(report: Report, demo: Demo): Promise<void> {
  const tool = await fromDebian('slowhttptest');
  if ('why' in tool) return report.skipped('slowhttptest', tool.why);
  for (const [what, how] of attacks) {
    const size = ['-c', String(connections), '-r', '200', '-l', String(seconds), '-i', '5', '-p', '5'];
    const args = [...how, ...size, '-u', `${demo.data}/activity`];
    const attack = ran(tool.path, args, 3_000 * seconds);
    const { tookMs, failed } = await meanwhile(demo, attack);
    const { output } = await attack;
    const detail = `${failed} of ${tookMs.length + failed} were not answered`;
    report.check(
      `slowhttptest: others are answered during ${connections} slow ${what}`,
      failed === 0,
      detail,
    );
    const p99 = tookMs[Math.floor(tookMs.length * 0.99)] ?? 0;
    const plain = stripVTControlCharacters(output);
    const connected = [...plain.matchAll(/connected: +(\d+)/g)].map(([, n]) => Number(n));
    report.figure(
      `slow ${what}: at most ${Math.max(0, ...connected)} open at once, others' p99 ${p99.toFixed(0)} ms of ${tookMs.length} calls`,
    );
  }
}
