/** The counts of some minutes as people read them. Owns rounding and what is left out. */
import { outcomes } from '../telemetry/outcome.policy.ts';
import { countOf, shedReasons, waitQuantile, type Cell } from './cell.ts';
import type { RecentPressure } from './shape.ts';

/** A cell as people read it: waits rounded to milliseconds, refusals only where there were any. */
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
