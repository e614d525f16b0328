/**
 * A breaker: what the upstream refuses for a reason that waiting does not cure is asked again by one call at a time, and
 * rarely. Pure; times are of the clock of whoever asks, milliseconds.
 *
 *   closed ── refused ──▶ open ── its time has come, a call asks ──▶ probing ── refused ──▶ open, for twice as long
 *                                                                         └─── succeeded ──▶ closed
 *
 * Invariants: while a breaker is open nobody is sent; while it probes one call is; the pause between two probes grows from
 * `firstPauseMs` to `maxPauseMs`, and is never shorter than the time that the upstream named.
 */

import type { BreakerSubject, Feedback, Throttle } from '../call.ts';
import type { ProviderError } from '../provider-error.policy.ts';

/** Time from the first refusal to the first probe. */
export const firstPauseMs = 60_000;
export const maxPauseMs = 900_000;
/** After a probe whose response decided nothing (a server error, a request with a mistake of its own). */
export const silentPauseMs = 10_000;
/** A probe whose response has not come by then is given up: another call may ask. */
export const probeLifeMs = 60_000;
/** A breaker that no call has asked for this long after its time is forgotten. */
export const memoryMs = 3_600_000;
/** A call that comes this much before the stated time is let through: the time was computed with the clocks of several machines. */
const toleranceMs = 250;

/** A breaker that is not closed. */
export interface Breaker {
  /** `open`: nobody is sent before `until`. `probing`: one call has been sent, and its response is awaited until then. */
  readonly kind: 'open' | 'probing';
  /** Status of the refusal, which is answered in the upstream's stead. */
  readonly status: number;
  /** What the provider's own error says beside it; `null` = no known word. */
  readonly said: ProviderError | null;
  /** Probes that were refused, and the first refusal. */
  readonly refusals: number;
  /** When the first of them came, Unix milliseconds. */
  readonly since: number;
  readonly until: number;
}

/** A refusal for a reason that waiting does not cure. */
export interface PermanentRefusal {
  readonly status: number;
  readonly said: ProviderError | null;
  /** Time after which the upstream says that trying makes sense; `null` = it says nothing. */
  readonly statedMs: number | null;
  /** When it came, Unix milliseconds. */
  readonly at: number;
  readonly isProbe: boolean;
}

/** The reply to a call that asks whether it may be sent. */
export type BreakerReply =
  | {
      readonly kind: 'refused';
      readonly status: number;
      readonly said: ProviderError | null;
      readonly retryInMs: number;
    }
  /** The call is the probe; the breaker becomes `next`. */
  | { readonly kind: 'probe'; readonly next: Breaker };

/** The breaker after a refusal. `null` = it was closed. Refusals of calls sent before it opened change nothing. */
export function afterRefusal(before: Breaker | null, refusal: PermanentRefusal, now: number): Breaker {
  if (before !== null && !refusal.isProbe) return before;
  const refusals = (before?.refusals ?? 0) + 1;
  const pauseMs = Math.min(maxPauseMs, firstPauseMs * 2 ** (refusals - 1));
  return {
    kind: 'open',
    status: refusal.status,
    said: refusal.said,
    refusals,
    since: before?.since ?? refusal.at,
    until: now + Math.max(pauseMs, refusal.statedMs ?? 0),
  };
}

/** The breaker after a probe whose response decided nothing. */
export const afterSilence = (before: Breaker, now: number): Breaker => ({
  ...before,
  kind: 'open',
  until: now + silentPauseMs,
});

/** Asks a breaker that is not closed for a call: the breaker refuses the call, or makes it the probe. */
export function ask(breaker: Breaker, now: number): BreakerReply {
  const { status, said, until } = breaker;
  if (until - now > toleranceMs) return { kind: 'refused', status, said, retryInMs: until - now };
  return { kind: 'probe', next: { ...breaker, kind: 'probing', until: now + probeLifeMs } };
}

/** True when no call has asked for the breaker for so long that its state says nothing about the upstream any more. */
export const isForgotten = ({ until }: Breaker, now: number): boolean => now > until + memoryMs;

// Which other calls a refusal concerns: all that carry the credential, or those to one host, for one model or on one path with it. A
// refusal that lies in the call itself (it is too large, its query too expensive) concerns no other call; those by a limit that is not
// the bucket's own (`secondary`) do.

export const concerns = ['credential', 'host', 'model', 'path', 'bucket'] as const;
export type Concern = (typeof concerns)[number];

/**
 * True for a refusal that may lie in the call itself: it opens a breaker only where a second one follows before any call with the
 * credential succeeds. Until then each such call is refused by the upstream itself, which costs nobody anything.
 */
export const needsConfirmation = (throttle: Throttle): boolean =>
  throttle.kind === 'permanent' && throttle.reason === 'unclear';

/** `null`: no other call is concerned. */
export function concernOf(throttle: Throttle): Concern | null {
  if (throttle.kind === 'secondary') return 'path';
  if (throttle.kind !== 'permanent') return null;
  if (throttle.scope !== undefined) return throttle.scope === 'call' ? null : throttle.scope;
  switch (throttle.reason) {
    case 'quota':
    case 'unclear':
      return 'credential';
    case 'store_state':
      return 'host';
    case 'daily':
      return 'model';
    case 'too_large':
    case 'max_cost':
      return null;
  }
}

/**
 * The parts of a breaker's name beside upstream and credential, for a call and a concern; `null`: the call lacks such a part, and
 * has no such breaker.
 */
export function partsOf(
  { bucket, host, model, operation }: BreakerSubject,
  concern: Concern,
): readonly string[] | null {
  switch (concern) {
    case 'credential':
      return [];
    case 'host':
      return [host];
    case 'model':
      return model === null ? null : [model];
    case 'path':
      return [host, operation];
    case 'bucket':
      return [bucket];
  }
}

// What an attempt reports

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
