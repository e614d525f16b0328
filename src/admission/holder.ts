/**
 * One call as the desk keeps it, from its admission to its end: data, and what follows from it alone. Refuses to own:
 * the lines (`waiting.ts`), the grants (`charging.ts`). Keeps: nobody is sent after its client left, its key was revoked
 * or its wait has passed (9).
 */
import { Refusal } from '../errors.ts';
import { expired, type Failure } from './refusals.ts';
import { passageMs } from './shed.policy.ts';
import type { Entry, Lease } from './ticket.ts';

interface Waiter {
  readonly resolve: (lease: Lease) => void;
  readonly reject: (failure: Failure) => void;
  readonly since: number;
}

export interface Holder {
  /** As configuration has it now: replaced by a reload. */
  entry: Entry;
  deadline: number;
  /** Set while the caller waits for a lease. */
  waiter: Waiter | null;
  /** Set while a grant that came early waits for its caller: told when the caller waits, or has left. */
  onTurn: (() => void) | null;
  waitedMs: number;
  cancelDeadline: (() => void) | null;
  left: boolean;
  /** Its call succeeded: the limiter has forgotten the ticket, there is nothing to take out. */
  done: boolean;
  /** It was sent before, and is in the line again. */
  hadLease: boolean;
  /** Why it was refused before it came to wait; it is told when it does. */
  refused: Failure | null;
  readonly onClientGone: () => void;
}

/** `now` is monotonic milliseconds, as everywhere here. */
export const createHolder = (entry: Entry, now: number, onGone: (holder: Holder) => void): Holder => {
  const holder: Holder = {
    entry,
    deadline: now + Math.max(entry.maxWaitMs, passageMs),
    waiter: null,
    onTurn: null,
    waitedMs: 0,
    cancelDeadline: null,
    left: false,
    done: false,
    hadLease: false,
    refused: null,
    onClientGone: () => onGone(holder),
  };
  return holder;
};

/** Why the call must not be sent now; `null` = it may. */
export function reasonToStop(holder: Holder, now: number): Failure | null {
  if (holder.entry.clientGone.aborted) return new Refusal('request_invalid', { detail: 'The client left.' });
  if (!holder.entry.stillValid()) return new Refusal('unauthenticated');
  if (now > holder.deadline) return expired(0, 'queue');
  return null;
}

/** Resolves when the caller waits for its lease, or has left. */
export const callerTurned = (holder: Holder): Promise<void> =>
  holder.waiter !== null || holder.left
    ? Promise.resolve()
    : new Promise((resolve) => {
        holder.onTurn = resolve;
      });
