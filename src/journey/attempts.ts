/**
 * One attempt of a call: sent under its lease, judged, and passed on, given up, or to be made again.
 *
 * Owns: to whom its result is reported. Does not own: the loop (`pipeline.ts`), the decision (`dispatch/resend.policy.ts`), how the end
 * is reported to the limiter (`lease-end.ts`). Invariant: an attempt's lease is settled once.
 */
import { Buffer } from 'node:buffer';
import type { AdmissionRecord, Outcome } from '../call.ts';
import type { Clock } from '../clock.ts';
import { type AttemptResult, type Dispatcher, type Sending, statusOf } from '../dispatch/dispatcher.ts';
import { resend, type ResendDecision, type ResendHistory } from '../dispatch/resend.policy.ts';
import { failureReason, type TransportError } from '../dispatch/transport-error.ts';
import { upstreamIdOf } from '../dispatch/response-fields.policy.ts';
import type { TokenEstimates } from '../dispatch/token-estimates.ts';
import type { Refusal } from '../errors.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { honouredWaitMs } from '../honoured-wait.policy.ts';
import type { JoinedQuotas } from '../quotas/joined-quotas.ts';
import type { ResponseTimes } from './response-times.ts';
import { failureRefusal, fieldsForClient, rateLimitOf, type Answered } from './response.ts';
import {
  endAnswered,
  endBroken,
  requeue,
  chargeOf,
  type PassDecision,
  type SendAgainDecision,
} from './lease-end.ts';
import type { Prepared } from './prepare.ts';
import type { Permission } from './send-checks.ts';

export interface AttemptsParts {
  readonly dispatcher: Dispatcher;
  readonly estimates: TokenEstimates;
  readonly responseTimes: ResponseTimes;
  readonly clock: Clock;
  readonly quotas: JoinedQuotas;
}

/** One attempt of a call, under its lease. */
export interface Attempt extends Sending, Permission {
  readonly prepared: Prepared;
}

/** A call between two attempts. */
export interface Progress {
  attempts: number;
  absorbed: number;
  history: ResendHistory;
  /** When the upstream first refused the call without naming a time, monotonic milliseconds; `null` = it has not. */
  refusedAt: number | null;
}

/** What the resend policy gets beside the attempt. */
interface Judged {
  readonly progress: Progress;
  readonly remainingMs: number;
  readonly isCredentialRenewed: boolean;
  readonly isObserved: boolean;
}

export class Attempts {
  readonly #parts: AttemptsParts;

  constructor(parts: AttemptsParts) {
    this.#parts = parts;
  }

  /** Resolves with how the attempt ended, once quotas, telemetry and answer times have what its response states. */
  async send(attempt: Attempt): Promise<AttemptResult> {
    const { prepared, lease } = attempt;
    const { dispatcher, quotas, responseTimes, clock } = this.#parts;
    const sentAt = clock.monotonic();
    const result = await dispatcher.send(attempt).catch((bug: unknown) => {
      lease.settle({ kind: 'unknown' }, null);
      throw bug;
    });
    if (result.kind === 'answered') {
      const { throttle } = result.feedback;
      quotas.noteOwner(prepared.ownQuota, result.feedback);
      const upstreamId = throttle === null ? null : upstreamIdOf(result.head.rawFields);
      prepared.callRecord.answered(result.head.status, throttle, upstreamId);
      if (throttle === null && statusOf(result) < 500)
        responseTimes.note(prepared.request.admission.bucket, sentAt, clock.monotonic());
    }
    return result;
  }

  /** What the resend policy makes of an attempt. */
  judge(
    { call, route, body, description, request, callRecord }: Prepared,
    result: AttemptResult,
    { progress: { history, refusedAt }, remainingMs, isCredentialRenewed, isObserved }: Judged,
  ): ResendDecision {
    const { upstream } = route;
    const { responseTimes, clock } = this.#parts;
    const decision = resend({
      kind: upstream.kind,
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
      // The bucket has served calls since it first refused this one: the refusal lies in the call, and not in the bucket.
      othersPass: refusedAt !== null && responseTimes.hasServedSince(request.admission.bucket, refusedAt),
      remainingMs,
      passesThrottles: isObserved,
      hintlessMs: upstream.dialect?.hintlessMs ?? null,
      honouredMs: honouredWaitMs(call.rawFields),
    });
    if (decision.closeMs > 0) callRecord.recording?.closed(clock.monotonic(), decision.closeMs);
    return decision;
  }

  /** The result is final. The response goes to the client, and the lease ends with it. @throws Refusal where there is no response */
  passOn(
    attempt: Attempt,
    result: AttemptResult,
    { decision, record }: { readonly decision: PassDecision; readonly record: AdmissionRecord },
  ): Outcome {
    const { prepared, lease } = attempt;
    if (result.kind === 'failed') throw giveUp(attempt, result.error, decision);
    const { head, feedback, bodyFeedback } = result;
    const capped = lease.grant.holdsPlace;
    const { body, done } = endAnswered(lease, result, { ...decision, capped });
    const onEnd = (): void => {
      done();
      this.#learnCharge(prepared, result);
      const { recording } = prepared.callRecord;
      if (recording !== null) recording.charged(chargeOf(result), feedback.meters);
    };
    const rateLimit = rateLimitOf(lease.ceiling);
    return {
      status: head.status,
      throttled: feedback.throttle !== null,
      errorStatus: () => feedback.errorStatus ?? bodyFeedback?.feedback()?.errorStatus ?? null,
      fields: fieldsForClient(prepared, head, rateLimit !== null),
      upstreamFields: head.rawFields,
      body,
      maxUnreadMs: prepared.route.upstream.timeouts.idleMs,
      commentMs: prepared.route.upstream.commentMs,
      record,
      rateLimit,
      // What the upstream says of repeating the call goes before what we would say.
      shouldRetry: saysWhetherToRetry(head.rawFields) ? null : decision.shouldRetry,
      onEnd,
    };
  }

  /** The call is sent again: its ticket goes back to its position. Returns whether that absorbs a throttled response. */
  sendAgain({ prepared, lease }: Attempt, result: AttemptResult, decision: SendAgainDecision): boolean {
    requeue(lease, result, decision);
    const { callRecord } = prepared;
    if (result.kind === 'answered') {
      this.#learnCharge(prepared, result);
      if (!Buffer.isBuffer(result.body)) result.body.destroy();
      if (result.feedback.throttle !== null) {
        callRecord.absorbed();
        return true;
      }
    }
    const broken = decision.cause === 'credential' ? 'credential_unavailable' : 'reset';
    callRecord.attemptFailed(broken, result.kind === 'failed' ? failureReason(result.error) : null);
    return false;
  }

  /** What the call was charged improves the next estimate. */
  #learnCharge({ guess }: Prepared, { feedback, bodyFeedback }: Answered): void {
    if (guess !== null) this.#parts.estimates.learn(guess, feedback, bodyFeedback?.feedback() ?? null);
  }
}

function fateOf({ neverSent, stale }: TransportError): 'never_sent' | 'stale' | 'fate_unknown' {
  if (neverSent) return 'never_sent';
  return stale ? 'stale' : 'fate_unknown';
}

/** True where an upstream's response says itself whether its client should repeat the call. */
const saysWhetherToRetry = (rawFields: readonly string[]): boolean =>
  valuesOf(rawFields, 'x-should-retry').some((value) => /^\s*(?:true|false)\s*$/i.test(value));

/** The final attempt broke: the lease ends, the client gets a refusal. */
function giveUp(
  { prepared: { description, callRecord }, lease }: Attempt,
  error: TransportError,
  decision: PassDecision,
): Refusal {
  endBroken(lease, error, { safe: description.safe, capped: lease.grant.holdsPlace });
  const refusal = failureRefusal(error, decision.shouldRetry !== false);
  callRecord.attemptFailed(error.kind === 'aborted' ? 'client_gone' : refusal.code, failureReason(error));
  return refusal;
}
