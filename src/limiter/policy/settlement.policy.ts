/** What a settlement becomes when it is reported late, or for a ticket that is not there any more. Pure. */
import type { Settlement } from '../limiter.ts';

/** The ticket waits again. */
export const isRequeued = (settlement: Settlement): boolean =>
  settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);

/** The settlement without its delays, to be reported so late that they have passed. */
export const withoutDelays = (settlement: Settlement): Settlement =>
  settlement.kind === 'throttled' ? { ...settlement, closeMs: 0, sleepMs: 0 } : settlement;

/** The settlement for a call that has left meanwhile: no ticket goes back to its lane. */
export function withoutRequeue(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}
