/**
 * A breaker: what the upstream refuses for a reason that waiting does not cure is asked again by one call at a time, and
 * rarely. Pure; times are of the clock of whoever asks, milliseconds.
 *
 *   closed ── refused ──▶ open ── its time has come, a call asks ──▶ probing ── refused ──▶ open, for twice as long
 *                                                                         └─── succeeded ──▶ closed
 *
 * Owns: when the next call may ask. Does not own: what a refusal concerns (`concern.policy.ts`), the calls.
 * Invariants: while a breaker is open nobody is sent; while it probes one call is; the pause between two probes grows from
 * `firstPauseMs` to `maxPauseMs`, and is never shorter than the time that the upstream named.
 */

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
  readonly until: number;
}

/** A refusal for a reason that waiting does not cure. */
export interface PermanentRefusal {
  readonly status: number;
  readonly said: ProviderError | null;
  /** Time after which the upstream says that trying makes sense; `null` = it says nothing. */
  readonly statedMs: number | null;
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
