/** Puts an attempt into the words of the resend policy, which decides. Owns no decision. */
import { statusOf, type AttemptResult } from '../dispatch/attempt.ts';
import { resend, type ResendDecision, type ResendHistory } from '../dispatch/resend.policy.ts';
import type { TransportError } from '../dispatch/transport-error.ts';
import { honouredWaitMs } from '../honoured-wait.policy.ts';
import type { Prepared } from './prepare.ts';

/** A call between two attempts. */
export interface Progress {
  attempts: number;
  absorbed: number;
  history: ResendHistory;
  /** When the upstream first refused the call without naming a time, monotonic milliseconds; `null` = it has not. */
  refusedAt: number | null;
}

/** What the resend policy gets beside the attempt. */
interface Judged extends Pick<Progress, 'history'> {
  /** Calls of the bucket that were sent after the first refusal of this one have been served. */
  readonly othersPass: boolean;
  readonly remainingMs: number;
  readonly isCredentialRenewed: boolean;
}

/** What the resend policy makes of an attempt. */
export function judge(
  { call, route, body, description }: Prepared,
  result: AttemptResult,
  { history, othersPass, remainingMs, isCredentialRenewed }: Judged,
): ResendDecision {
  return resend({
    kind: route.upstream.kind,
    call: { ...description, replayable: body.replayable },
    outcome:
      result.kind === 'answered'
        ? {
            kind: 'answered',
            status: statusOf(result),
            throttle: result.feedback.throttle,
            isCredentialRenewed,
          }
        : { kind: fateOf(result.error) },
    history,
    othersPass,
    remainingMs,
    hintlessMs: route.upstream.dialect?.hintlessMs ?? null,
    honouredMs: honouredWaitMs(call.rawFields),
  });
}

function fateOf({ neverSent, stale }: TransportError): 'never_sent' | 'stale' | 'fate_unknown' {
  if (neverSent) return 'never_sent';
  return stale ? 'stale' : 'fate_unknown';
}
