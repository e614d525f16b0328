/** The counts of some minutes as people read them. Owns rounding and what is left out. */
import { outcomes } from '../telemetry/outcome.policy.ts';
import { read, shedReasons, waitQuantile, type Cell } from './cell.ts';
import type { RecentPressure } from './shape.ts';

/** A cell as people read it: waits rounded to milliseconds, refusals only where there were any. */
export function recentOf(cell: Cell): RecentPressure {
  const byOutcome = Object.fromEntries(outcomes.map((outcome) => [outcome, read(cell, outcome)]));
  const calls = outcomes.reduce((sum, outcome) => sum + read(cell, outcome), 0);
  return {
    calls,
    outcomes: byOutcome,
    held: read(cell, 'held'),
    waitMs: {
      mean: calls > 0 ? Math.round(read(cell, 'waitSumMs') / calls) : 0,
      p50: Math.round(waitQuantile(cell, 0.5)),
      p95: Math.round(waitQuantile(cell, 0.95)),
      max: Math.round(read(cell, 'waitMaxMs')),
    },
    absorbed: read(cell, 'absorbed'),
    throttled: { rate: read(cell, 'throttledRate'), permanent: read(cell, 'throttledPermanent') },
    shed: Object.fromEntries(
      shedReasons.map((reason) => [reason, read(cell, reason)] as const).filter(([, n]) => n > 0),
    ),
  };
}
