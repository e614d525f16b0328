/**
 * What the verdict on a finished attempt is made of, and what it says (`resend.policy.ts`). Types only.
 */
import type { Throttle, UpstreamKind } from '../call.ts';

/** The properties of a call that decide whether it may be sent again. */
export interface ResendCall {
  /** RFC 9110 safe method, or a GraphQL query. */
  readonly safe: boolean;
  /** Safe, or PUT or DELETE. */
  readonly idempotent: boolean;
  /** The whole body is still in memory. */
  readonly replayable: boolean;
  /** `rest`, `graphql` or `default`. */
  readonly callClass: string;
  /** The request carries a key by which the upstream itself recognises a repeat. */
  readonly hasOwnIdempotency: boolean;
  /** True for a POST that makes images: expensive and slow, so that it is sent again only once to an overloaded upstream. */
  readonly makesImages: boolean;
  /** A POST to a language model that creates nothing that stays: running it twice costs money and not correctness. */
  readonly onlyCosts: boolean;
}

/**
 * How an attempt ended. `fate_unknown`: bytes went out, and no response came. `stale`: the same on a kept connection that the
 * upstream closed without a byte of response.
 */
export type AttemptOutcome =
  | {
      readonly kind: 'answered';
      readonly status: number;
      readonly throttle: Throttle | null;
      /** The upstream refused the credential that the call carried, and another one is there or on its way. */
      readonly isCredentialRenewed: boolean;
    }
  | { readonly kind: 'never_sent' }
  | { readonly kind: 'stale' }
  | { readonly kind: 'fate_unknown' };

/** Why a call is sent again. Each cause has its own bound. */
export type ResendCause =
  'credential' | 'rate' | 'hintless' | 'overload' | 'never_sent' | 'stale' | 'unknown';

/** Resends made so far, by cause. */
export type ResendHistory = Readonly<Partial<Record<ResendCause, number>>>;

export interface ResendInput {
  readonly kind: UpstreamKind;
  readonly call: ResendCall;
  readonly outcome: AttemptOutcome;
  /** Attempts made, this one included; at least 1. */
  readonly attempts: number;
  /** What the last decision returned. Absent: every earlier attempt counts against every bound. */
  readonly history?: ResendHistory;
  /**
   * Other calls of the bucket that were sent after this one's first refusal without a hint have been served. Absent: it is not known.
   */
  readonly othersPass?: boolean;
  /** What is left of the call's own wait, milliseconds. */
  readonly remainingMs: number;
  /** The wait after a refusal that names none, as the upstream's dialect has it, milliseconds. Absent, `null`: a growing back-off. */
  readonly hintlessMs?: number | null;
  /** The longest time to try again that the call's client waits for, milliseconds; absent: less than a minute. */
  readonly honouredMs?: number;
}

/**
 * Which calls may not be sent before the time: all of the `bucket`; this `call` alone, and those behind it in its lane; or `none`, where
 * the upstream has asked nobody to wait, and only our own back-off holds the call.
 */
export type ThrottleScope = 'bucket' | 'call' | 'none';

export type ResendDecision =
  | {
      readonly kind: 'resend';
      /** The next attempt may leave this many milliseconds after this response's head, not earlier. */
      readonly notBeforeMs: number;
      readonly closes: ThrottleScope;
      /** How long the bucket is closed for all other calls, milliseconds; 0 where `closes` is not `bucket`. */
      readonly closeMs: number;
      readonly cause: ResendCause;
      /** To be handed in with the next attempt of the same call. */
      readonly history: ResendHistory;
    }
  | {
      /** The outcome is final. A response goes to the client as it is; where none came, a refusal of ours does. */
      readonly kind: 'pass';
      /**
       * `false`: add `x-should-retry: false` unless the upstream says something of its own; repeating the call cannot succeed or could
       * run it twice. `null`: add nothing.
       */
      readonly shouldRetry: false | null;
      /** A throttle that is passed on closes all the same, for `closeMs` milliseconds. */
      readonly closes: ThrottleScope;
      readonly closeMs: number;
    };
