/**
 * Refusals of repeats: the call that they repeat has no response for them, is a different call, or will not end in this process; or their own key has ended. Owns: the
 * words of these refusals. Does not own: when a repeat is refused (`repeats.ts`, `response-of-another.ts`, `shared-call.ts`).
 */
import { Refusal } from '../errors.ts';

/** The call has run: repeating it cannot succeed. */
export const tooLarge = (): Refusal =>
  new Refusal('idempotency_conflict', {
    detail: 'The call with this key has been answered, and its response is too large to be kept.',
    shouldRetry: false,
  });

/** The call has run, but its response is gone from Redis or cannot be decrypted. */
export const unreadable = (): Refusal =>
  new Refusal('idempotency_conflict', {
    detail: 'The call with this key has been answered, and its response is no longer available.',
    shouldRetry: false,
  });

/** @throws Refusal `idempotency_mismatch` where the key was used for a different call */
export function assertSameCall(
  key: { readonly fingerprint: string },
  known: { readonly fingerprint: string },
): void {
  if (known.fingerprint !== key.fingerprint) throw new Refusal('idempotency_mismatch');
}

/** The key of a client that waits for a shared call is not valid any more. */
export const unauthenticated = (): Refusal => new Refusal('unauthenticated');

/** This process ends before the call does: the repeat may come to another replica. */
export const endsBeforeResponse = (): Refusal => new Refusal('draining', { retryInMs: 1_000 });
