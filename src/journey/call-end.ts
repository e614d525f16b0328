/** How a call's end is reported to telemetry: which outcome it counts as. Each call ends once, with the first report. */
import { Buffer } from 'node:buffer';
import type { ResponseEnd, Call, Outcome } from '../call.ts';
import { failureReason, bodyError } from '../dispatch/transport-error.ts';
import { Refusal, refusals } from '../errors.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import { outcomeOfResponse, type CallOutcome } from '../telemetry/outcome.policy.ts';

/** The outcome, which reports its end when its response has ended. */
export const reportedAtItsEnd = (outcome: Outcome, callRecord: CallRecord): Outcome => ({
  ...outcome,
  onEnd: (how) => {
    outcome.onEnd(how);
    if (how === 'upstream_cut') reportCut(outcome, callRecord);
    const { status, record: admission } = outcome;
    callRecord.ended({ outcome: outcomeOf(how, outcome), status, code: null, admission });
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

/** The call ended without a response of the upstream. */
export function reportFailure(call: Call, callRecord: CallRecord, failure: unknown): void {
  if (call.clientGone.aborted) {
    callRecord.ended({ outcome: 'client_gone', status: 0, code: null });
  } else if (failure instanceof Refusal) {
    const { code, status } = failure;
    const { heldBy, ticket } = failure.details;
    const outcome = refusals[code].family;
    const isReserved = ticket !== undefined;
    callRecord.ended({ outcome, status, code, isReserved, ...(heldBy === undefined ? {} : { heldBy }) });
  } else {
    callRecord.ended({ outcome: 'failed', status: 500, code: null });
  }
}
