/** Why a queued call will not be sent (again). Owns: what its caller's promise is rejected with. */
import type { Refusal } from '../errors.ts';

export type Ending =
  /** Sluice refuses it: too late, its key was revoked, the process ends. */
  | { readonly kind: 'refused'; readonly refusal: Refusal }
  /** Nobody waits for its answer any more; `reason` is that of the client's abort signal. */
  | { readonly kind: 'client_gone'; readonly reason: unknown }
  /** A store failed in a way that no refusal describes. The caller hears of it, the call is not lost. */
  | { readonly kind: 'failed'; readonly error: unknown }
  /** Its ticket was handed in: the call was answered, or given up by its caller. */
  | { readonly kind: 'left' };

export const refused = (refusal: Refusal): Ending => ({ kind: 'refused', refusal });

/** What the promise of a caller that waits, or comes to wait, is rejected with. */
export function rejectionOf(ending: Ending): unknown {
  switch (ending.kind) {
    case 'refused':
      return ending.refusal;
    case 'client_gone':
      return ending.reason;
    case 'failed':
      return ending.error;
    case 'left':
      return new Error('a ticket was used after it was handed in');
  }
}
