/**
 * What a permanent refusal concerns: everything that is sent with the credential, or one host, one model, one path under it.
 *
 * Owns: that mapping. Does not own: what a refusal is (`dispatch/feedback/`). Invariant: a refusal of one call alone (it
 * is too large, its query too dear) concerns nothing else.
 */
import type { BreakerSubject, Throttle } from '../call.ts';

export const concerns = ['credential', 'host', 'model', 'path'] as const;
export type Concern = (typeof concerns)[number];

/** `null`: no other call is concerned. */
export function concernOf(throttle: Throttle): Concern | null {
  if (throttle.kind === 'secondary') return 'path';
  if (throttle.kind !== 'permanent') return null;
  switch (throttle.reason) {
    case 'quota':
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

/** What names the breaker of this concern of a call, beside upstream and credential; `null`: the call has no such part. */
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
