/**
 * What makes one call a repeat of another, and what is kept of a response for repeats that come later. Types only.
 */
import type { CallSignal } from '../call-abort.ts';

/**
 * How a call shows that it may be a repeat. `key`: the client names the call (`Idempotency-Key`, a webhook id) · `first`,
 * `again`: an SDK numbers its attempts, and this is the first or a later one · `silent`: the client is known to resend calls
 * without saying so.
 */
export type RepeatMarker = 'key' | 'first' | 'again' | 'silent';

/** Identifies a call that may be a repeat of another, or may be repeated later. */
export interface RepeatKey {
  readonly marker: RepeatMarker;
  /** Digest that equal calls share: of the workspace, its credential and the key, or of the whole call. */
  readonly name: string;
  /** Digest of method, target and body: the same key with another fingerprint is refused (422). */
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
  /** Fields after cleaning, name and value alternating. */
  readonly fields: readonly string[];
  readonly body: Buffer;
  /** What `x-should-retry` said; `null` = nothing. */
  readonly shouldRetry: boolean | null;
}

/** What is kept of an answered call. `too_large`: the call has run, but its response is not kept. */
export interface Remembered {
  readonly fingerprint: string;
  readonly response: KeptResponse | 'too_large';
}

/** How a call ended: with a response, which may be kept for its repeats, or without one. */
export type CallResult =
  | { readonly kind: 'answered'; readonly response: KeptResponse | 'too_large'; readonly isKept: boolean }
  | { readonly kind: 'failed'; readonly failure: unknown };

/** All clients that wait for a call's response, as one signal for the journey. It aborts when none is left, which ends the call. */
export interface Audience extends CallSignal {
  /** The call is about to be sent, or goes back into its lane. Absent where nobody needs to know. */
  moved?(to: 'upstream' | 'lane'): void;
}
