/** What answers a call that an open breaker concerns: the upstream's refusal, repeated by Sluice. */
import { Refusal } from '../errors.ts';
import type { ProviderError } from '../provider-error.policy.ts';

export function breakerRefusal({
  status,
  said,
  retryInMs,
}: {
  readonly status: number;
  readonly said: ProviderError | null;
  readonly retryInMs: number;
}): Refusal {
  return new Refusal('upstream_refused', {
    status,
    retryInMs,
    detail: `The upstream refuses such calls with ${status}, for a reason that waiting does not cure. One call asks it again at the time named here.`,
    shouldRetry: false,
    ...(said === null ? {} : { said }),
    ...(status === 429 ? { heldBy: 'closed' as const } : {}),
  });
}
