/**
 * Which other calls a refusal concerns: all that carry the credential, or those to one host, for one model or on one path
 * with it. Permanent refusals concern others, and so do those by a limit that is not the bucket's own (`secondary`).
 *
 * Owns: that mapping. Does not own: what a refusal is (`dispatch/feedback/`). Invariant: a refusal that lies in the call itself
 * (it is too large, its query too expensive) concerns no other call.
 */
import type { BreakerSubject, Throttle } from '../call.ts';

export const concerns = ['credential', 'host', 'model', 'path'] as const;
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
  { host, model, operation }: BreakerSubject,
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
  }
}
