/**
 * How often and how late a call may be sent again: bounds by cause, the call's own wait, the body that is left.
 *
 * Owns: those bounds. Does not own: which outcome asks for what (`resend.policy.ts`). Pure.
 * Invariant: every chain of resends ends, by count or by the call's own wait.
 */
import type {
  ThrottleScope,
  ResendCause,
  ResendDecision,
  ResendHistory,
  ResendInput,
} from './resend-decision.policy.ts';

/** Most SDKs stop believing waits of a minute and more (or retry at once): such a refusal says "do not retry". */
const commonHonouredMs = 59_999;
const maxBackoffMs = 8000;

/** `firstMs` × 2ⁿ, `maxMs` at most. */
export const backoffMs = (firstMs: number, n: number, maxMs = maxBackoffMs): number =>
  Math.min(firstMs * 2 ** n, maxMs);

/** A resend that the table of `resend.policy.ts` proposes after an outcome. */
interface ResendProposal {
  readonly cause: ResendCause;
  /** Maximum number of resends of one call for this cause. */
  readonly maxResends: number;
  readonly waitMs: number;
  readonly closes?: ThrottleScope;
  /** How long the bucket is closed for others, milliseconds. Default: as long as this call waits. */
  readonly closeMs?: number;
}

/** Resends as proposed while the bound of its cause, the body and the wait of the call allow; else the outcome is passed on. */
export function resendWithinBounds(
  input: ResendInput,
  { cause, maxResends, waitMs, closes = 'none', closeMs = waitMs }: ResendProposal,
): ResendDecision {
  const made = resendsMade(input, cause);
  if (!input.call.replayable) {
    const shouldRetry = input.outcome.kind === 'never_sent' ? null : false; // the client still has its body
    return passOn(shouldRetry, { closes, closeMs: closes === 'none' ? 0 : closeMs });
  }
  if (made >= maxResends || waitMs > input.remainingMs) {
    const throttled = closes !== 'none';
    return passOn(throttled && waitMs > (input.honouredMs ?? commonHonouredMs) ? false : null, {
      closes,
      closeMs: throttled ? closeMs : 0,
    });
  }
  return {
    kind: 'resend',
    notBeforeMs: waitMs,
    closes,
    closeMs: closes === 'bucket' ? closeMs : 0,
    cause,
    history: { ...before(input), [cause]: made + 1 },
  };
}

/** Resends made so far for one cause. */
export function resendsMade(input: ResendInput, cause: ResendCause): number {
  return before(input)[cause] ?? 0;
}

function before({ history, attempts }: ResendInput): ResendHistory {
  if (history !== undefined) return history;
  const n = Math.max(0, attempts - 1);
  return {
    credential: n,
    rate: n,
    hintless: n,
    overload: n,
    never_sent: n,
    stale: n,
    unknown: n,
  };
}

/** The decision to pass the outcome on to the client. */
export function passOn(
  shouldRetry: false | null,
  closing: Partial<Pick<Extract<ResendDecision, { kind: 'pass' }>, 'closes' | 'closeMs'>> = {},
): ResendDecision {
  return { kind: 'pass', shouldRetry, closes: 'none', closeMs: 0, ...closing };
}
