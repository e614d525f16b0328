/**
 * One attempt of a call under its lease: sent, learned from, and passed on or given up.
 *
 * Owns: to whom the result is reported. Does not own: whether there is another attempt (`forward.ts`), how the end is reported
 * to the limiter (`lease-end.ts`). Invariant: an attempt's lease is settled once.
 */
import { Buffer } from 'node:buffer';
import type { Lease } from '../admission/ticket.ts';
import type { AdmissionRecord, Outcome, ResponseHead } from '../call.ts';
import type { Clock } from '../clock.ts';
import { statusOf, type AttemptResult } from '../dispatch/attempt.ts';
import type { Dispatcher } from '../dispatch/dispatcher.ts';
import { failureReason } from '../dispatch/failure-reason.policy.ts';
import type { Sending } from '../dispatch/upstream-request.ts';
import { upstreamIdOf } from '../dispatch/upstream-id.policy.ts';
import type { TokenEstimates } from '../dispatch/token-estimates.ts';
import type { TransportError } from '../dispatch/transport-error.ts';
import type { Refusal } from '../errors.ts';
import type { JoinedQuotas } from '../quotas/joined-quotas.ts';
import type { RouteFinder } from '../target/route.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import type { ResponseTimes } from './response-times.ts';
import { failureRefusal, fieldsForClient, rateLimitOf, type Answered } from './response.ts';
import { endAnswered, endBroken, type PassDecision, type SendAgainDecision } from './lease-end.ts';
import type { Prepared } from './prepare.ts';
import { valuesOf } from '../field-lines.policy.ts';

export interface AttemptsParts {
  readonly dispatcher: Dispatcher;
  readonly estimates: TokenEstimates;
  readonly responseTimes: ResponseTimes;
  readonly clock: Clock;
  readonly quotas: JoinedQuotas;
  /** As they are configured now. */
  readonly routes: () => RouteFinder;
  /** Lower-case names of the fields in which an API key may come. */
  readonly keyFields: () => readonly string[];
}

/** One attempt of a call, under its lease. */
export interface Attempt extends Sending {
  readonly prepared: Prepared;
  readonly lease: Lease;
  readonly callRecord: CallRecord;
}

export class Attempts {
  readonly #parts: AttemptsParts;

  constructor(parts: AttemptsParts) {
    this.#parts = parts;
  }

  /** Resolves with how the attempt ended, once quotas, telemetry and answer times have what its response states. */
  async send(attempt: Attempt): Promise<AttemptResult> {
    const { prepared, lease, callRecord } = attempt;
    const sentAt = this.#parts.clock.monotonic();
    const result = await this.#parts.dispatcher.send(attempt).catch((bug: unknown) => {
      lease.settle({ kind: 'unknown' }, null);
      throw bug;
    });
    if (result.kind === 'answered') {
      const { throttle } = result.feedback;
      this.#parts.quotas.noteOwner(prepared.ownQuota, result.feedback);
      const upstreamId = throttle === null ? null : upstreamIdOf(result.head.rawFields);
      callRecord.answered(result.head.status, throttle, upstreamId);
      if (throttle === null && statusOf(result) < 500) {
        const { bucket } = prepared.request.admission;
        this.#parts.responseTimes.note(bucket, sentAt, this.#parts.clock.monotonic());
      }
    }
    return result;
  }

  /** What the call was charged improves the next estimate. */
  learnCharge({ guess }: Prepared, { feedback, bodyFeedback }: Answered): void {
    if (guess !== null) this.#parts.estimates.learn(guess, feedback, bodyFeedback?.feedback() ?? null);
  }

  /** The fields of a response as the client of this call gets them. */
  fieldsFor(prepared: Prepared, head: ResponseHead, addsRateLimit: boolean): readonly string[] {
    const { upstream } = prepared.route;
    return fieldsForClient(prepared, head, {
      addsRateLimit,
      keyFields: this.#parts.keyFields(),
      viaPrefix: (url) => this.#parts.routes().viaPrefix(upstream, url),
    });
  }

  /** The response goes to the client, and the lease ends with it. */
  passOn(
    attempt: Attempt,
    decision: PassDecision,
    { answered, record }: { readonly answered: Answered; readonly record: AdmissionRecord },
  ): Outcome {
    const { prepared, lease } = attempt;
    const { route, request } = prepared;
    const capped = request.admission.maxInFlight !== null;
    const { body, done } = endAnswered(lease, answered, { ...decision, capped });
    const onEnd = (): void => {
      done();
      this.learnCharge(prepared, answered);
    };
    const rateLimit = rateLimitOf(lease.ceiling);
    return {
      status: answered.head.status,
      throttled: answered.feedback.throttle !== null,
      errorStatus: () =>
        answered.feedback.errorStatus ?? answered.bodyFeedback?.feedback()?.errorStatus ?? null,
      fields: this.fieldsFor(prepared, answered.head, rateLimit !== null),
      upstreamFields: answered.head.rawFields,
      body,
      maxUnreadMs: route.upstream.timeouts.idleMs,
      record,
      rateLimit,
      // What the upstream says of repeating the call goes before what we would say.
      shouldRetry: saysWhetherToRetry(answered.head.rawFields) ? null : decision.shouldRetry,
      onEnd,
    };
  }
}

/** True where an upstream's response says itself whether its client should repeat the call. */
const saysWhetherToRetry = (rawFields: readonly string[]): boolean =>
  valuesOf(rawFields, 'x-should-retry').some((value) => /^\s*(?:true|false)\s*$/i.test(value));

/** The final attempt broke: the lease ends, the client gets a refusal. */
export function giveUp(
  { prepared, lease, callRecord }: Attempt,
  error: TransportError,
  decision: PassDecision,
): Refusal {
  const { description, request } = prepared;
  const capped = request.admission.maxInFlight !== null;
  endBroken(lease, error, { safe: description.safe, capped });
  const refusal = failureRefusal(error, decision.shouldRetry !== false);
  callRecord.attemptFailed(error.kind === 'aborted' ? 'client_gone' : refusal.code, failureReason(error));
  return refusal;
}

/** Ends an attempt whose call is sent again. Returns whether that absorbs a throttled response. */
export function endResent(
  result: AttemptResult,
  { cause }: SendAgainDecision,
  callRecord: CallRecord,
): boolean {
  if (result.kind === 'answered') {
    if (!Buffer.isBuffer(result.body)) result.body.destroy();
    if (result.feedback.throttle !== null) {
      callRecord.absorbed();
      return true;
    }
  }
  const broken = cause === 'credential' ? 'credential_unavailable' : 'reset';
  callRecord.attemptFailed(broken, result.kind === 'failed' ? failureReason(result.error) : null);
  return false;
}
