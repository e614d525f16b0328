/** What a settlement becomes when it is reported late, or for a ticket that is not there any more. Pure. */
import type { Settlement } from '../limiter.ts';

/** The ticket waits again. */
export const isRequeued = (settlement: Settlement): boolean =>
  settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);

/** The same settlement, reported late: its delays have passed by then. */
export const withoutDelays = (settlement: Settlement): Settlement =>
  settlement.kind === 'throttled' ? { ...settlement, closeMs: 0, sleepMs: 0 } : settlement;

/** The same for a call that is not there any more. */
export function withoutRequeue(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}
