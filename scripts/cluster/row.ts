/** What a scenario is and what it says. Types and words only. */
import type { CallResponse } from '../../test/support/redis-fleet.ts';

export interface Row {
  /** `null`: the machine was too busy to judge. */
  readonly passed: boolean | null;
  readonly figures: string;
  /** Longest time for which anything was kept from running; a row that failed meanwhile is run once more. Milliseconds. */
  readonly stalledMs?: number;
}

export interface Scenario {
  readonly name: string;
  /** Its figures are those of a machine that lets everybody run: a failure while it does not is reported, and not judged. */
  readonly needsQuiet?: true;
  run(): Promise<Row>;
}

export const seconds = (ms: number): string => `${(ms / 1000).toFixed(2)} s`;

/** A makespan against what the upstream's bucket allows at best. */
export const ratio = (tookMs: number, bestMs: number): string =>
  `${seconds(tookMs)} = ${(tookMs / bestMs).toFixed(3)} × optimum`;

/** A machine that stops an idle process for so long cannot show a makespan within a few percent. Milliseconds. */
export const quietMs = 50;

/** A makespan over `atBest` times the optimum is a failure on a machine that let everybody run; elsewhere it is only reported. */
export function inTime(
  { tookMs, stalledMs }: { readonly tookMs: number; readonly stalledMs: number },
  bestMs: number,
  atBest: number,
): { readonly ok: boolean; readonly words: string } {
  const late = tookMs > bestMs * atBest;
  const excused = late && stalledMs > quietMs;
  const note = excused ? ` (more than ${atBest}, not judged: the machine stalled)` : '';
  return { ok: !late || excused, words: `makespan ${ratio(tookMs, bestMs)}${note}` };
}

/**
 * With less of the processors' time left while calls are sent, requests lie unread for longer than the spacing that order is
 * judged by, and nobody knows when they arrived. A share, 0 to 1.
 */
const minIdleShare = 0.05;

export const isSaturated = ({ idleShare }: { readonly idleShare: number }): boolean =>
  idleShare < minIdleShare;

/** Calls out of order are a failure where the processors had time to read them when they came; elsewhere they are only reported. */
export function inOrder(
  seen: { readonly idleShare: number },
  isKept: boolean,
): { readonly ok: boolean; readonly words: string } {
  const excused = !isKept && isSaturated(seen);
  const idle = `processors idle ${(100 * seen.idleShare).toFixed(0)} % while calls were sent`;
  return { ok: isKept || excused, words: excused ? `${idle} (order not judged: they were saturated)` : idle };
}

/** Responses by status and code, as `200 ×3, 429 wait_too_long ×1`. */
export function summary(responses: readonly CallResponse[]): string {
  const counts = new Map<string, number>();
  for (const { status, code } of responses) {
    const name = `${status}${code === '' ? '' : ` ${code}`}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return `${responses.length} calls: ${[...counts].map(([name, times]) => `${name} ×${times}`).join(', ')}`;
}

export const succeeded = (responses: readonly CallResponse[]): number =>
  responses.filter(({ status }) => status >= 200 && status < 300).length;

export const allSucceeded = (responses: readonly CallResponse[]): boolean =>
  succeeded(responses) === responses.length;
