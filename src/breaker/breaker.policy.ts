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

/** What an attempt shows of the upstream. */
export type Observation =
  | {
      readonly kind: 'refused';
      readonly status: number;
      readonly throttle: Throttle;
      readonly said: ProviderError | null;
    }
  | { readonly kind: 'succeeded' }
  /** Neither: it broke, was refused for a reason of its own, or was not made. */
  | { readonly kind: 'silent' };

export type Refused = Extract<Observation, { kind: 'refused' }>;

/**
 * The breaker after a refusal. Refusals of calls that were sent before it opened change nothing.
 * @param before `null` = it was closed
 * @param now `unixMs`: the same instant, Unix milliseconds
 */
export function afterRefusal(
  before: Breaker | null,
  { status, said, throttle, isProbe }: Refused & { readonly isProbe: boolean },
  now: { readonly ms: number; readonly unixMs: number },
): Breaker {
  if (before !== null && !isProbe) return before;
  const refusals = (before?.refusals ?? 0) + 1;
  const pauseMs = Math.min(maxPauseMs, firstPauseMs * 2 ** (refusals - 1));
  const until = now.ms + Math.max(pauseMs, throttle.waitMs ?? 0);
  return { kind: 'open', status, said, refusals, since: before?.since ?? now.unixMs, until };
}

/** The breaker after a probe whose response decided nothing. */
export const afterSilence = (before: Breaker, now: number): Breaker => ({
  ...before,
  kind: 'open',
  until: now + silentPauseMs,
});

/** The breaker when the call that asks is its probe; `null`: it refuses the call until its time. */
export const asProbe = (breaker: Breaker, now: number): Breaker | null =>
  breaker.until - now > toleranceMs ? null : { ...breaker, kind: 'probing', until: now + probeLifeMs };

/** True when no call has asked for the breaker for so long that its state says nothing about the upstream any more. */
export const isForgotten = ({ until }: Breaker, now: number): boolean => now > until + memoryMs;

// Which other calls a refusal concerns: all that carry the credential, or those to one host, for one model or on one path with it. A
// refusal that lies in the call itself (it is too large, its query too expensive) concerns no other call; those by a limit that is not
// the bucket's own (`secondary`) do.

/**
 * The parts of a breaker's name beside upstream and credential, by what it concerns; `null` among them: the call lacks that part, and has
 * no such breaker.
 */
export const partsOf = {
  credential: () => [],
  host: ({ host }) => [host],
  model: ({ model }) => [model],
  path: ({ host, operation }) => [host, operation],
  bucket: ({ bucket }) => [bucket],
} satisfies Record<string, (subject: BreakerSubject) => readonly (string | null)[]>;
export type Concern = keyof typeof partsOf;

const ofReason = {
  quota: 'credential',
  unclear: 'credential',
  store_state: 'host',
  daily: 'model',
  too_large: null,
  max_cost: null,
} as const;

/** `null`: no other call is concerned. */
export function concernOf(throttle: Throttle): Concern | null {
  if (throttle.kind === 'secondary') return 'path';
  if (throttle.kind !== 'permanent') return null;
  const concern = throttle.scope ?? ofReason[throttle.reason];
  return concern === 'call' ? null : concern;
}

/**
 * True for a refusal that may lie in the call itself: it opens a breaker only where a second one follows before any call with the
 * credential succeeds. Until then each such call is refused by the upstream itself, which costs nobody anything.
 */
export const needsConfirmation = (throttle: Throttle): boolean =>
  throttle.kind === 'permanent' && throttle.reason === 'unclear';

/** What an attempt shows. `null`: it was not made. */
export function observationOf(
  result:
    | {
        readonly kind: 'answered';
        readonly head: { readonly status: number };
        readonly feedback: Pick<Feedback, 'throttle' | 'errorStatus' | 'said'>;
      }
    | { readonly kind: 'failed' }
    | null,
): Observation {
  if (result?.kind !== 'answered') return { kind: 'silent' };
  const { throttle, errorStatus, said = null } = result.feedback;
  const status = errorStatus ?? result.head.status;
  if (throttle === null) return { kind: status < 400 ? 'succeeded' : 'silent' };
  // A client that is asked to slow down is not refused for good.
  if (throttle.kind === 'rate') return { kind: 'succeeded' };
  // A server error proves nothing of an account, whatever code it carries; a shop is refused with 540, too.
  const isRefused =
    throttle.kind === 'secondary' ||
    (throttle.kind === 'permanent' && (status < 500 || throttle.reason === 'store_state'));
  return isRefused ? { kind: 'refused', status, throttle, said } : { kind: 'silent' };
}
