/** Who calls in a lane now, by the state of the log: of all replicas. Pure. */
import type { LaneKey, CallerKey } from '../../ids.ts';
import type { CallerNow } from '../limiter.ts';
import type { Bucket } from '../policy/bucket-state.policy.ts';

/** The calls of each caller that calls of the lane name; those that name none are left out. */
export function callersIn({ tickets }: Bucket, lane: LaneKey): CallerNow[] {
  const callers = new Map<CallerKey, CallerNow>();
  for (const ticket of tickets.values()) {
    const { caller, lease } = ticket;
    if (caller === undefined || ticket.lane !== lane) continue;
    const { waiting, inFlight } = callers.get(caller) ?? { waiting: 0, inFlight: 0 };
    const isWaiting = lease === null;
    callers.set(caller, {
      caller,
      waiting: isWaiting ? waiting + 1 : waiting,
      inFlight: isWaiting ? inFlight : inFlight + 1,
    });
  }
  return [...callers.values()];
}
