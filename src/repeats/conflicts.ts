/** Refusals of calls that use an idempotency key in a way in which no answer can be given. */
import { Refusal } from '../errors.ts';

export const conflict = (detail: string): Refusal => new Refusal('idempotency_conflict', { detail });

/** The call has run: repeating it cannot succeed. */
export const tooLarge = (): Refusal =>
  new Refusal('idempotency_conflict', {
    detail: 'The call with this key has been answered, and its answer was too large to be kept.',
    shouldRetry: false,
  });

/** The call has run, and what Redis has of its answer is gone or cannot be opened. */
export const unreadable = (): Refusal =>
  new Refusal('idempotency_conflict', {
    detail: 'The call with this key has been answered, and its answer cannot be had any more.',
    shouldRetry: false,
  });

/** @throws Refusal `idempotency_mismatch` where the key was used with another call */
export function demandSame(
  key: { readonly fingerprint: string },
  known: { readonly fingerprint: string },
): void {
  if (known.fingerprint !== key.fingerprint) throw new Refusal('idempotency_mismatch');
}

/** The process ends before the answer is there. */
export const closing = (): Refusal => new Refusal('draining', { retryInMs: 1_000 });
