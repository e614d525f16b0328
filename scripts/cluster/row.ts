/** What a scenario is and what it says. Types and words only. */
import type { Answer } from '../../test/support/redis-fleet.ts';

export interface Row {
  readonly passed: boolean;
  readonly figures: string;
}

export interface Scenario {
  readonly name: string;
  run(): Promise<Row>;
}

export const seconds = (ms: number): string => `${(ms / 1000).toFixed(2)} s`;

/** A makespan against what the upstream's bucket allows at best. */
export const ratio = (tookMs: number, bestMs: number): string =>
  `${seconds(tookMs)} = ${(tookMs / bestMs).toFixed(3)} × optimum`;

/** Answers by status and code, as `200 ×3, 429 wait_too_long ×1`. */
export function told(answers: readonly Answer[]): string {
  const counts = new Map<string, number>();
  for (const { status, code } of answers) {
    const name = `${status}${code === '' ? '' : ` ${code}`}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return `${answers.length} calls: ${[...counts].map(([name, times]) => `${name} ×${times}`).join(', ')}`;
}

export const succeeded = (answers: readonly Answer[]): number =>
  answers.filter(({ status }) => status >= 200 && status < 300).length;

export const allSucceeded = (answers: readonly Answer[]): boolean => succeeded(answers) === answers.length;
