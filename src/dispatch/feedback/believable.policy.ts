/**
 * How much of a response is believed.
 *
 * A bucket is shared, and while it is held shut no further response comes that could set it right: one absurd number,
 * wherever it stood, must not close it for years. So nothing that a single response says holds calls back for more than a
 * day, and whatever it says about a level is undone by the next response within the window that it named itself.
 *
 * Owns: the bounds of reports and waits. Does not own: reading them (the dialects), and limits that are merely wrong;
 * those are learned and unlearned. Invariant: what leaves here is finite; a report that cannot be a quota is dropped.
 */
import type { Feedback, MeterReport } from '../../call.ts';
import { maxRetryAfterMs } from '../retry-after.policy.ts';

/** Quotas are counted in whole units, and sums of more than this many are not exact any more. */
const minLimit = 1;
const maxLimit = 1e15;
/** The longest window of any known limiter. A bucket whose stated window is longer drains within a day all the same. Milliseconds. */
const maxWindowMs = 86_400_000;
const minWindowMs = 1;

/** The feedback with its reports and waits within the bounds of belief. */
export function believable(feedback: Feedback): Feedback {
  const meters = feedback.meters.map(bounded).filter((report) => report !== null);
  const points = meters.find(({ meter }) => meter === 'cost')?.limit ?? maxLimit;
  const { throttle, requestedCost, actualCost, requestedTokens } = feedback;
  const tooLong = throttle !== null && throttle.waitMs !== null && throttle.waitMs > maxRetryAfterMs;
  return {
    ...feedback,
    meters,
    throttle: tooLong ? { ...throttle, waitMs: maxRetryAfterMs } : throttle,
    // No document takes more than a full bucket.
    ...(requestedCost === undefined ? {} : { requestedCost: Math.min(requestedCost, points) }),
    ...(actualCost === undefined ? {} : { actualCost: Math.min(actualCost, points) }),
    ...(requestedTokens === undefined ? {} : { requestedTokens: Math.min(requestedTokens, maxLimit) }),
  };
}

/**
 * The report within the bounds; `null`: it cannot be a quota. Its level is at most its limit, because the upstream refused, and did
 * not count, what was beyond.
 */
function bounded({ meter, limit, windowMs, resetMs, level }: MeterReport): MeterReport | null {
  if (!(limit >= minLimit && limit <= maxLimit)) return null;
  return {
    meter,
    limit,
    windowMs: windowMs === null ? null : Math.min(Math.max(windowMs, minWindowMs), maxWindowMs),
    ...(resetMs === undefined || resetMs === null ? {} : { resetMs: Math.min(resetMs, maxWindowMs) }),
    level:
      level === null
        ? null
        : { lowest: Math.min(level.lowest, limit), highest: Math.min(level.highest, limit) },
  };
}
