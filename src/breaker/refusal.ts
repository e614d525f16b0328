/** What answers a call that an open breaker concerns: the upstream's refusal, repeated by Sluice. */
import { Refusal } from '../errors.ts';

export function breakerRefusal({
  status,
  retryInMs,
}: {
  readonly status: number;
  readonly retryInMs: number;
}): Refusal {
  return new Refusal('upstream_refused', {
    status,
    retryInMs,
    detail: `The upstream refuses such calls with ${status}, for a reason that waiting does not cure. One call asks it again at the time named here.`,
    shouldRetry: false,
    ...(status === 429 ? { heldBy: 'closed' as const } : {}),
  });
}
