/**
 * The refusals of the desk and the times they tell. Refuses to own: deciding that a call is refused. Keeps: nobody is
 * invited sooner than the truth, or than a second where the truth is only expected.
 */
import { Refusal } from '../errors.ts';

/** Something went wrong that is not a refusal (a store failed): the waiting call is told, never lost. */
export type Failure = Refusal | Error;

/**
 * Where the time to try again is only expected (a line that does not move is expected to move at once), clients are not
 * invited sooner than this: `retry-after-ms: 1` would make SDKs ask a thousand times a second. Milliseconds.
 */
const leastRetryMs = 1_000;

/** The call cannot leave within its wait; `day`: because the day is used up. */
export const tooLong = (waitMs: number, day: boolean): Refusal =>
  day
    ? new Refusal('day_quota_exhausted', { retryInMs: waitMs })
    : new Refusal('wait_too_long', { retryInMs: waitMs, detail: longer(waitMs) });

/** Says how a call gets through that has the time: a full ceiling takes longer to free than calls wait unasked. */
function longer(waitMs: number): string {
  const seconds = Math.ceil(waitMs / 1_000);
  const wait = Number.isFinite(seconds) ? `, which is ${seconds} s from now` : '';
  return `The call may not wait until its turn${wait}. Prefer: wait=<seconds> lets it wait longer.`;
}

/** The call's wait is over; `waitMs` is what it would have had to wait yet, as far as known. */
export const expired = (waitMs: number): Refusal =>
  new Refusal('wait_expired', { retryInMs: Math.max(leastRetryMs, waitMs) });

/** The process ends before the call's turn would come. */
export const draining = (): Refusal => new Refusal('draining', { retryInMs: leastRetryMs });

/** What the limiter said of a newcomer. */
export function refusedBy(
  reason: 'queue_full' | 'wait_too_long' | 'day_quota_exhausted' | 'limiter_unavailable',
  retryInMs: number,
): Refusal {
  if (reason === 'wait_too_long') return tooLong(retryInMs, false);
  const known = reason !== 'queue_full' && reason !== 'limiter_unavailable';
  return new Refusal(reason, { retryInMs: known ? retryInMs : Math.max(leastRetryMs, retryInMs) });
}
