/** What an attempt reports to the breakers. Pure. */
import type { Feedback, Throttle } from '../call.ts';
import type { ProviderError } from '../provider-error.policy.ts';

/** As much of an attempt's result as matters. */
type Result =
  | {
      readonly kind: 'answered';
      readonly head: { readonly status: number };
      readonly feedback: Pick<Feedback, 'throttle' | 'errorStatus' | 'said'>;
    }
  | { readonly kind: 'failed' };

export type Observation =
  | {
      readonly kind: 'refused';
      readonly status: number;
      readonly throttle: Throttle;
      /** What the provider's own error says beside it; absent = no known word. */
      readonly said?: ProviderError;
    }
  | { readonly kind: 'succeeded' }
  /** Neither: it broke, or was refused for a reason of its own. */
  | { readonly kind: 'silent' };

const silent: Observation = { kind: 'silent' };

/** `null`: the attempt was not made. */
export function observationOf(result: Result | null): Observation {
  if (result === null || result.kind === 'failed') return silent;
  const { throttle, errorStatus, said } = result.feedback;
  const status = errorStatus ?? result.head.status;
  switch (throttle?.kind) {
    case 'permanent':
      // A server error proves nothing of an account, whatever code it carries; a shop is refused with 540, too.
      return status < 500 || throttle.reason === 'store_state'
        ? { kind: 'refused', status, throttle, ...(said === undefined ? {} : { said }) }
        : silent;
    case 'secondary':
      return { kind: 'refused', status, throttle };
    case 'rate':
      // A client that is asked to slow down is not refused for good.
      return { kind: 'succeeded' };
    case 'overload':
      return silent;
    case undefined:
      return status < 400 ? { kind: 'succeeded' } : silent;
  }
}
