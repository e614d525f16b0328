/**
 * How a call's end is reported to telemetry. Owns: which outcome an end counts as. Each call ends there once, with the first
 * of these.
 */
import type { AnswerEnd, Call, Outcome } from '../call.ts';
import { Refusal } from '../errors.ts';
import type { CallTelemetry } from '../telemetry/events.ts';
import { outcomeOfAnswer, outcomeOfRefusal, type CallOutcome } from '../telemetry/outcome.policy.ts';

/** The same outcome, whose end is reported. */
export const followedToItsEnd = (outcome: Outcome, followed: CallTelemetry): Outcome => ({
  ...outcome,
  onEnd: (how) => {
    outcome.onEnd(how);
    followed.ended({
      outcome: outcomeOf(how, outcome),
      status: outcome.status,
      code: null,
      admission: outcome.record,
    });
  },
});

/** An answer that the upstream broke off is no success, whatever its head said. */
function outcomeOf(how: AnswerEnd, { status, throttled }: Outcome): CallOutcome {
  if (how === 'client_gone') return how;
  return how === 'upstream_cut' ? 'failed' : outcomeOfAnswer(status, throttled);
}

/** The journey ended without an answer of the upstream. */
export function reportFailure(call: Call, followed: CallTelemetry, failure: unknown): void {
  if (call.clientGone.aborted) {
    followed.ended({ outcome: 'client_gone', status: 0, code: null });
  } else if (failure instanceof Refusal) {
    const { code } = failure;
    const { heldBy } = failure.details;
    followed.ended({
      outcome: outcomeOfRefusal(code),
      status: failure.status,
      code,
      ...(heldBy === undefined ? {} : { heldBy }),
    });
  } else {
    followed.ended({ outcome: 'failed', status: 500, code: null });
  }
}
