/** What makes one call a repeat of another, what is kept of a response for repeats that come later, and why a repeat is refused. */
import { Refusal } from '../errors.ts';

/** Identifies a call that may be a repeat of another, or may be repeated later. */
export interface RepeatKey {
  /**
   * How a call shows that it may be a repeat. `key`: the client names the call (`Idempotency-Key`, a webhook id) · `first`,
   * `again`: an SDK numbers its attempts, and this is the first or a later one.
   */
  readonly marker: 'key' | 'first' | 'again';
  /** With a key: digest of the workspace, its credential and the key. Without one: the name of one making of the call. */
  readonly name: string;
  /** Digest of all of the request that goes upstream: the same key with another fingerprint is refused (422). */
  readonly fingerprint: string;
  /** Digest of the workspace: each workspace has a bound on its kept responses. */
  readonly owner: string;
  readonly upstream: string;
  /** Encrypts kept responses, together with the label key. Never leaves the process. */
  readonly secret: { readonly workspaceId: string; readonly key: string };
}

/** A whole response of an upstream. */
export interface KeptResponse {
  readonly status: number;
  /** As the upstream sent them, name and value alternating: each client gets them in the form of its own call. */
  readonly rawFields: readonly string[];
  readonly body: Buffer;
  /** What `x-should-retry` said; `null` = nothing. */
  readonly shouldRetry: boolean | null;
}

/** How a call ended: with a response, which may be kept for its repeats, or without one. */
export type CallResult =
  | { readonly kind: 'answered'; readonly response: KeptResponse | 'too_large'; readonly isKept: boolean }
  | { readonly kind: 'failed'; readonly failure: unknown };

/** The call has run: repeating it cannot succeed. */
export const tooLarge = (): Refusal =>
  new Refusal('idempotency_conflict', {
    detail: 'The call with this key has been answered, and its response is too large to be kept.',
  });

/** The call has run, but its response cannot be decrypted. */
export const unreadable = (): Refusal =>
  new Refusal('idempotency_conflict', {
    detail: 'The call with this key has been answered, and its response is no longer available.',
  });

/** @throws Refusal `idempotency_mismatch` where the key was used for a different call */
export function assertSameCall(key: RepeatKey, known: Pick<RepeatKey, 'fingerprint'>): void {
  if (known.fingerprint === key.fingerprint) return;
  throw new Refusal('idempotency_mismatch', {
    detail:
      'This key was used with another method, target, body or header: repeat that request unchanged, or use another key.',
  });
}
