/** The call of histories that are about something else than what a call asks for. */
import type { Step } from './bucket-history.ts';

/** Without `setting`, which each history has of its own. */
export const plain = {
  lane: 1,
  spread: false,
  background: false,
  weight: 1,
  maxInFlight: null,
  perMinute: null,
  ceilingTag: 'none.none',
  maxQueued: 1_000,
  urgency: 3,
  callClass: 'plain',
  caller: null,
  costs: { requests: 1 },
  document: null,
  arrivedAgoMs: 0,
  maxWaitMs: 1e6,
  leaseMs: 30_000,
  again: false,
} as const satisfies Partial<Extract<Step, { kind: 'admit' }>>;
