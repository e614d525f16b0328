/**
 * Parts of the nightly run as processes of their own: each runs to its end whatever became of the one before, and is summed up by its
 * exit code, its last line of totals, and the figures that it recorded.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { systemClock } from '../../src/clock.ts';
import { figuresIn, figuresVariable, type Figure } from './figures.ts';

export interface Part {
  readonly name: string;
  /** What it proves or measures. */
  readonly what: string;
  readonly command: readonly [program: string, ...args: readonly string[]];
  /** Takes hours: runs once a week. */
  readonly isWeekly?: true;
}

export interface Outcome {
  /** `not run`: nothing of it could be done here. */
  readonly result: 'passed' | 'FAILED' | 'not run';
  readonly minutes: number;
  /** Processes that wanted to run when it began, on average over a minute. */
  readonly load: number;
  /** Its totals in its own words, and why it left something out. */
  readonly words: string;
  readonly figures: readonly Figure[];
}

/** As `soak: 4 passed, 0 failed, 0 skipped`. */
const totals = /^\w+: (\d+) (?:passed|found), .+$/;

/** Runs one part; what it prints is printed. */
export async function runPart({ command: [program, ...args] }: Part): Promise<Outcome> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-nightly-'));
  const file = join(folder, 'figures');
  writeFileSync(file, '');
  const [load = 0] = loadavg();
  const startedAt = systemClock.monotonic();
  const lines: string[] = [];
  const process_ = spawn(program, args, {
    env: { ...process.env, [figuresVariable]: file },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const reading = createInterface({ input: process_.stdout }).on('line', (line) => {
    console.log(line);
    if (totals.test(line) || /^skipped/i.test(line)) lines.push(line);
  });
  const read = new Promise<void>((resolve) => reading.once('close', resolve));
  const ended = await new Promise<number | string>((resolve) => {
    process_.once('error', (failure) => resolve(failure.message));
    process_.once('close', (code, signal) => resolve(code ?? signal ?? 'no exit code'));
  });
  await read;
  const minutes = (systemClock.monotonic() - startedAt) / 60_000;
  const figures = figuresIn(readFileSync(file, 'utf8'));
  rmSync(folder, { recursive: true });
  return { ...summedUp(ended, lines), minutes, load: Number(load.toFixed(1)), figures };
}

/** @param ended the exit code, or what ended or kept the process in words */
export function summedUp(
  ended: number | string,
  lines: readonly string[],
): Pick<Outcome, 'result' | 'words'> {
  const total = lines.findLast((line) => totals.test(line)) ?? '';
  const reasons = new Set(lines.filter((line) => /^skipped/i.test(line)));
  const words = [total, ...reasons].filter((line) => line !== '').join('; ');
  if (ended !== 0) return { result: 'FAILED', words: words === '' ? `ended with ${ended}` : words };
  const [, passed] = totals.exec(total) ?? [];
  return { result: passed === '0' && reasons.size > 0 ? 'not run' : 'passed', words };
}
