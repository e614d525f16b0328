/**
 * What an operator's pause of an upstream means for a call: it waits for the end as long as it may, and is refused at once
 * where that is not long enough. Does not own: who is paused until when (`control/`).
 */
import type { AdmissionRequest, Lease, Ticket } from '../admission/ticket.ts';
import type { Controls } from '../control/controls.ts';
import { Refusal } from '../errors.ts';

/** Pauses of upstreams, and buckets to be opened. */
export type CallControls = Pick<Controls, 'isQuiet' | 'used' | 'pausedMs'>;

/** While an upstream is paused, each lane with waiting calls is granted one this often. Milliseconds. */
const askAgainMs = 1_000;

const refusal = (code: 'wait_too_long' | 'wait_expired', retryInMs: number): Refusal =>
  new Refusal(code, {
    heldBy: 'closed',
    retryInMs,
    detail: 'An operator has paused this upstream for longer than the call may wait.',
  });

/** Before a call enters its lane: a bucket that was to be opened is open by then. @throws Refusal where the pause is too long */
export async function beginUnder(
  controls: CallControls,
  { subject: { upstream }, admission, maxWaitMs }: AdmissionRequest,
): Promise<void> {
  await controls.used(upstream, admission.bucket);
  const pausedMs = controls.pausedMs(upstream);
  if (pausedMs > maxWaitMs) throw refusal('wait_too_long', pausedMs);
}

/**
 * Gives a grant back while the upstream is paused: the lane sleeps, and the call is asked again a second later at most, so
 * that a resumed upstream is used at once. False: it is not paused. @throws Refusal where what is left of the wait is shorter
 */
export function returnedWhilePaused(pausedMs: number, lease: Lease, ticket: Ticket): boolean {
  if (pausedMs === 0) return false;
  if (pausedMs > ticket.remainingMs()) {
    lease.settle({ kind: 'dropped' }, null);
    throw refusal('wait_expired', pausedMs);
  }
  lease.settle({ kind: 'returned', sleepMs: Math.min(pausedMs, askAgainMs), because: 'backoff' }, null);
  return true;
}
