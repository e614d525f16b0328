/**
 * The time to try again, in the spellings that client libraries really read.
 *
 * Owns: rounding and the bounds. Does not own: what the true time is.
 * Invariant: no spelling is earlier than the truth.
 */

/** Fields about trying again; `null` = the field is not sent. */
export interface RetryFields {
  /** Whole seconds: some clients fail on a fraction, and retry at once on 0 (openai from 6.27, urllib3). */
  readonly retryAfterSeconds: number;
  /** Exact milliseconds, at least 1. */
  readonly retryAfterMs: number | null;
  /** False when the wait is longer than the client honours. */
  readonly shouldRetry: false | null;
}

/** Above 2^31 − 1 ms client timers fire at once, so the exact spelling is left out. */
const maxTimerMs = 2_147_483_647;
/** The time given where no better one is known. */
const defaultRetryMs = 1_000;

/**
 * @param retryInMs true time until a retry can succeed; not finite or absent = unknown.
 * @param honouredMs the longest time that the client waits for.
 */
export function retryFields(retryInMs: number | undefined, honouredMs: number): RetryFields {
  const known = retryInMs !== undefined && Number.isFinite(retryInMs) ? retryInMs : defaultRetryMs;
  const ms = Math.max(1, Math.ceil(known));
  const seconds = Math.ceil(ms / 1_000);
  return {
    retryAfterSeconds: seconds,
    retryAfterMs: ms <= maxTimerMs ? ms : null,
    shouldRetry: seconds * 1_000 > honouredMs ? false : null,
  };
}
