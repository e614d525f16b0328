/**
 * What a commerce REST response teaches: the call-limit field and the refusals around it.
 *
 * Owns: `current/limit` and the meaning of the statuses. Does not own: GraphQL cost. Invariant: the bucket drains
 * limit/20 per second, so its window is 20 s whatever the plan; the denominator is read, never assumed.
 */
import type { Feedback, Throttle } from '../../call.ts';
import { appScope } from './app-scope.policy.ts';
import { retryAfterMs } from '../retry-after.policy.ts';
import type { ResponseFacts } from './facts.policy.ts';

/** Calls in the bucket after this one, and its capacity. */
export interface CallLimit {
  readonly used: number;
  readonly limit: number;
}

/** Time in which a full REST bucket drains: 40 calls at 2/s, 80 at 4/s, 400 at 20/s. Milliseconds. */
const restWindowMs = 20_000;
/**
 * The call-limit field, or `null`. Its name may have any prefix, and underscores instead of dashes. Where a response has several with
 * different values, the fuller one is believed.
 */
export function callLimitOf(fields: ReadonlyMap<string, string>): CallLimit | null {
  let fullest: CallLimit | null = null;
  for (const [name, value] of fields) {
    if (!name.endsWith('shop-api-call-limit') && !name.endsWith('_shop_api_call_limit')) continue;
    for (const single of value.slice(0, 256).split(',')) {
      const found = /^\s*(\d{1,7})\s*\/\s*(\d{1,7})\s*$/.exec(single);
      if (found === null) continue;
      const callLimit = { used: Number(found[1]), limit: Number(found[2]) };
      if (
        callLimit.limit > 0 &&
        (fullest === null || callLimit.used / callLimit.limit > fullest.used / fullest.limit)
      ) {
        fullest = callLimit;
      }
    }
  }
  return fullest;
}

export function learnFromCommerceRest({ status, fields, body, nowMs }: ResponseFacts): Feedback {
  const callLimit = callLimitOf(fields);
  const inSentence = callLimit === null && status === 429 ? fullBucketIn(body ?? '') : null;
  const calls = callLimit ?? inSentence;
  const statedMs = retryAfterMs(fields, nowMs) ?? (inSentence === null ? null : leakPeriodMs);
  const throttle = isOrderLimit(status, body ?? '')
    ? ({ kind: 'secondary', waitMs: statedMs } as const)
    : commerceStatus(status, calls, statedMs);
  const scope = appScope(fields);
  if (calls === null) return { meters: [], throttle, ...scope };
  // The counter is rounded up: `1/40` is anything above 0 and up to 1.
  const level = { lowest: Math.max(0, calls.used - 1), highest: calls.used };
  return {
    meters: [{ meter: 'requests', limit: calls.limit, windowMs: restWindowMs, level }],
    throttle,
    ...scope,
  };
}

/** The period in which `N calls per second` leak. Milliseconds. */
const leakPeriodMs = 1_000;

/**
 * The state of the bucket in the sentence of a refusal that lacks the field: `Exceeded 2 calls per second for api client` names the
 * rate of the leak, and that it refuses means that the bucket is full.
 */
function fullBucketIn(body: string): CallLimit | null {
  const leak = Number(/\bExceeded (\d{1,5}) calls per second\b/.exec(body)?.[1] ?? 0);
  const limit = leak * (restWindowMs / leakPeriodMs);
  return limit > 0 ? { used: limit, limit } : null;
}

/** `Exceeded order API rate limit, please try again in a minute`: a limit of development stores that is not the bucket's. */
const isOrderLimit = (status: number, body: string): boolean =>
  status === 429 && /\bExceeded \w{1,40} API rate limit\b/i.test(body);

/** Meaning of a commerce status. `statedMs` is what `Retry-After` says. */
export function commerceStatus(
  status: number,
  calls: CallLimit | null,
  statedMs: number | null,
): Throttle | null {
  switch (status) {
    case 429:
      return tooManyRequests(calls, statedMs);
    case 402: // frozen
    case 423: // locked after repeated excess
    case 430: // security rejection
    case 540: // temporarily disabled
      return { kind: 'permanent', reason: 'store_state', waitMs: statedMs };
    case 503:
    case 529:
      return { kind: 'overload', waitMs: statedMs };
    default:
      return null;
  }
}

function tooManyRequests(calls: CallLimit | null, statedMs: number | null): Throttle {
  if (statedMs !== null) return { kind: 'rate', waitMs: statedMs, meter: 'requests' };
  if (calls === null) return { kind: 'rate', waitMs: null, meter: null };
  // A bucket with room refused nothing: some other limit did (dev-store orders, daily variants), which a client that
  // waits for the bucket would retry for ever.
  if (calls.used < calls.limit - 1) return { kind: 'secondary', waitMs: null };
  return { kind: 'rate', waitMs: Math.ceil(restWindowMs / calls.limit), meter: 'requests' };
}
