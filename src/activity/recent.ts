/**
 * Converts the counts of some minutes, summed in one cell, into what `/activity` shows of them. Pure.
 * Owns: the rounding, and which zeros are left out. Does not own: the sum (`recorder.ts`).
 */
import { outcomes } from '../telemetry/outcome.policy.ts';
import { countOf, shedReasons, waitQuantile, type Cell } from './cell.ts';
import type { RecentPressure } from './shape.ts';

/** Waits are rounded to milliseconds; reasons of refusals are listed only where there were any. */
export function recentOf(cell: Cell): RecentPressure {
  const byOutcome = Object.fromEntries(outcomes.map((outcome) => [outcome, countOf(cell, outcome)]));
  const calls = outcomes.reduce((sum, outcome) => sum + countOf(cell, outcome), 0);
  return {
    calls,
    outcomes: byOutcome,
    held: countOf(cell, 'held'),
    waitMs: {
      mean: calls > 0 ? Math.round(countOf(cell, 'waitSumMs') / calls) : 0,
      p50: Math.round(waitQuantile(cell, 0.5)),
      p95: Math.round(waitQuantile(cell, 0.95)),
      max: Math.round(countOf(cell, 'waitMaxMs')),
    },
    absorbed: countOf(cell, 'absorbed'),
    throttled: { rate: countOf(cell, 'throttledRate'), permanent: countOf(cell, 'throttledPermanent') },
    shed: Object.fromEntries(
      shedReasons.map((reason) => [reason, countOf(cell, reason)] as const).filter(([, n]) => n > 0),
    ),
  };
}
