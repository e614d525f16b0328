/** What a scenario is, what it says, and how it is judged: every row alike, by what the machine did meanwhile. */
import type { CallResponse } from '../../test/support/redis-fleet.ts';
import type { Figure } from '../nightly/figures.ts';
import { tally } from '../report.ts';

/** What one run of a scenario found. */
export interface Row {
  /** Everything was kept that holds on any machine, however busy. */
  readonly holds: boolean;
  /**
   * What a machine that does not let everybody run may break was kept, too: times and order; no refusal by Sluice, which sheds what it
   * cannot serve in time; none by the upstream, since replicas whose commands take too long go on without Redis. Left out: the row
   * has nothing of it.
   */
  readonly holdsWhenQuiet?: boolean;
  /** In words, for people. */
  readonly figures: string;
  /** The nightly run compares them with those of before. */
  readonly measured?: readonly Figure[];
}

export interface Scenario {
  readonly name: string;
  run(): Promise<Row>;
}

/** One run, and why it says nothing of times and order; `null` = the machine let everybody run. */
export interface Run {
  readonly row: Row;
  readonly excuse: string | null;
}

export interface Verdict {
  readonly result: 'passed' | 'failed' | 'not judged';
  readonly figures: string;
  readonly measured: readonly Figure[];
}

const isKept = ({ holds, holdsWhenQuiet = true }: Row): boolean => holds && holdsWhenQuiet;

/**
 * A row that failed on a machine which did not let everybody run is run once more. Times and order that are missed again, again on
 * such a machine, are reported and not judged; for everything else a busy machine is no excuse.
 */
export async function judge(runOnce: () => Promise<Run>): Promise<Verdict> {
  const first = await runOnce();
  if (isKept(first.row) || first.excuse === null) return verdictOf(first);
  const second = await runOnce();
  const before = `run before, when ${first.excuse}: ${first.row.figures}`;
  const { figures, ...verdict } = verdictOf(second);
  return { ...verdict, figures: `${figures}; ${before}` };
}

function verdictOf({ row, excuse }: Run): Verdict {
  const { figures, measured = [] } = row;
  const words = excuse === null ? figures : `${figures}; ${excuse}`;
  const isExcused = row.holds && excuse !== null;
  return { result: isKept(row) ? 'passed' : isExcused ? 'not judged' : 'failed', figures: words, measured };
}

export const seconds = (ms: number): string => `${(ms / 1000).toFixed(2)} s`;

/** A makespan as a multiple of the best one, for the record. */
export const makespanOf = (tookMs: number, bestMs: number): Figure => ({
  name: 'makespan',
  value: tookMs / bestMs,
  unit: '× optimum',
});

/** A makespan against what the upstream's bucket allows at best. */
export const ratio = (tookMs: number, bestMs: number): string =>
  `${seconds(tookMs)} = ${(tookMs / bestMs).toFixed(3)} × optimum`;

/** Responses by status and code, as `4 calls: 200 ×3, 429 wait_too_long ×1`. */
export const summary = (responses: readonly CallResponse[]): string =>
  `${responses.length} calls: ${tally(responses.map(({ status, code }) => `${status} ${code}`.trim()))}`;

export const succeeded = (responses: readonly CallResponse[]): number =>
  responses.filter(({ status }) => status >= 200 && status < 300).length;

/** Every call was answered, by the upstream or with a refusal: a broken connection is status 0. */
export const noneLost = (responses: readonly CallResponse[]): boolean =>
  responses.every(({ status }) => status !== 0);

export const allSucceeded = (responses: readonly CallResponse[]): boolean =>
  succeeded(responses) === responses.length;
