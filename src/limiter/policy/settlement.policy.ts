/** What a settlement does with its ticket, and what it becomes where the ticket is gone. Pure. */
import type { Settlement } from '../limiter.ts';

/** The ticket waits again. */
export const isRequeued = (settlement: Settlement): boolean =>
  settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);

/** The settlement for a call that has left meanwhile: no ticket goes back to its lane. */
export function withoutRequeue(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}
