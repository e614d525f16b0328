/**
 * How a call's end is reported to telemetry. Owns: which outcome an end counts as. Each call ends there once, with the first
 * of these.
 */
import { Buffer } from 'node:buffer';
import type { ResponseEnd, Call, Outcome } from '../call.ts';
import { failureReason } from '../dispatch/failure-reason.policy.ts';
import { bodyError } from '../dispatch/transport-error.ts';
import { Refusal } from '../errors.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import { outcomeOfResponse, outcomeOfRefusal, type CallOutcome } from '../telemetry/outcome.policy.ts';

/** Returns the outcome with the report of its end added. */
export const followedToItsEnd = (outcome: Outcome, callRecord: CallRecord): Outcome => ({
  ...outcome,
  onEnd: (how) => {
    outcome.onEnd(how);
    if (how === 'upstream_cut') reportCut(outcome, callRecord);
    callRecord.ended({
      outcome: outcomeOf(how, outcome),
      status: outcome.status,
      code: null,
      admission: outcome.record,
    });
  },
});

/** A response that broke after its head had gone on: the attempt failed as well, and its body knows why. */
function reportCut({ body }: Outcome, callRecord: CallRecord): void {
  const error = body === null || Buffer.isBuffer(body) ? null : body.errored;
  if (error !== null) callRecord.attemptFailed('upstream_unreachable', failureReason(bodyError(error)));
}

/** A response that the upstream broke off, or that holds an error, is no success, whatever its head said. */
function outcomeOf(how: ResponseEnd, { status, throttled, errorStatus }: Outcome): CallOutcome {
  if (how === 'client_gone') return how;
  return how === 'upstream_cut' ? 'failed' : outcomeOfResponse(errorStatus?.() ?? status, throttled);
}

/** The journey ended without a result of the upstream. */
export function reportFailure(call: Call, callRecord: CallRecord, failure: unknown): void {
  if (call.clientGone.aborted) {
    callRecord.ended({ outcome: 'client_gone', status: 0, code: null });
  } else if (failure instanceof Refusal) {
    const { code } = failure;
    const { heldBy } = failure.details;
    callRecord.ended({
      outcome: outcomeOfRefusal(code),
      status: failure.status,
      code,
      ...(heldBy === undefined ? {} : { heldBy }),
    });
  } else {
    callRecord.ended({ outcome: 'failed', status: 500, code: null });
  }
}
