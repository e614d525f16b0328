/** Why a queued call will not be sent (again). Owns: what its caller's promise is rejected with. */
import type { Refusal } from '../errors.ts';

export type Ending =
  /** Sluice refuses the call: it is too late, its key was revoked, or the process ends. */
  | { readonly kind: 'refused'; readonly refusal: Refusal }
  /** Nobody waits for the call's response any more; `reason` is that of the client's abort signal. */
  | { readonly kind: 'client_gone'; readonly reason: unknown }
  /** A store failed in a way that no refusal describes. The caller's promise rejects with the error. */
  | { readonly kind: 'failed'; readonly error: unknown }
  /** The journey ended the ticket: the call was answered, or its attempt was given up. */
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
