/**
 * One attempt of a call: sent under its lease, judged, and passed on, given up, or to be made again.
 *
 * Owns: to whom its result is reported, the limiter above all. Does not own: the loop (`pipeline.ts`), the decision
 * (`dispatch/resend.policy.ts`). Invariant: an attempt's lease is settled once.
 */
import { Buffer } from 'node:buffer';
import type { Lease } from '../admission/ticket.ts';
import type { AdmissionRecord, Outcome, Call, ResponseHead } from '../call.ts';
import { type AttemptResult, type Sending, statusOf } from '../dispatch/dispatcher.ts';
import { spentOf } from '../dispatch/feedback/response.policy.ts';
import { readAhead } from '../dispatch/read-response.ts';
import {
  passedOn,
  resend,
  type ResendDecision,
  type ResendHistory,
  type ResendInput,
} from '../dispatch/resend.policy.ts';
import { cookieScope, returningFields } from '../dispatch/fields.policy.ts';
import { failureReason, type TransportError, bodyError, failureWords } from '../dispatch/transport-error.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { honouredWaitMs } from '../client-waits.policy.ts';
import type { Lesson, Settlement } from '../limiter/limiter.ts';
import type { FlowParts, Prepared } from './prepare.ts';
import { Refusal, refusals, type RefusalCode } from '../errors.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import type { CallOutcome } from '../telemetry/events.ts';

/** One attempt of a call, under its lease. */
export interface Attempt extends Sending {
  readonly prepared: Prepared;
  readonly lease: Lease;
}

/** A call between two attempts. */
export interface Progress {
  attempts: number;
  absorbed: number;
  history: ResendHistory;
  /** When the upstream first refused the call without naming a time, monotonic milliseconds; `null` = it has not. */
  refusedAt: number | null;
}

type Answered = Extract<AttemptResult, { kind: 'answered' }>;
type Pass = Extract<ResendDecision, { kind: 'pass' }>;
type SendAgain = Extract<ResendDecision, { kind: 'resend' }>;

export class Attempts {
  readonly #parts: FlowParts;

  constructor(parts: FlowParts) {
    this.#parts = parts;
  }

  /** Resolves with how the attempt ended, once quotas, telemetry and recent responses have what its response states. */
  async send(attempt: Attempt): Promise<AttemptResult> {
    const { prepared, lease } = attempt;
    const { dispatcher, quotas, recentResponses, clock } = this.#parts;
    const sentAt = clock.monotonic();
    let result: AttemptResult;
    try {
      result = await dispatcher.send(attempt);
    } catch (bug) {
      lease.settle({ kind: 'unknown' }, null);
      throw bug;
    }
    if (result.kind === 'failed') return result;
    const { throttle } = result.feedback;
    quotas.noteOwner(prepared.ownQuota, result.feedback);
    prepared.callRecord.answered(result.head.status, throttle);
    if (throttle === null && statusOf(result) < 500)
      recentResponses.noteServed(prepared.request.admission.bucket, sentAt);
    return result;
  }

  /** What the resend policy makes of an attempt. */
  judge(
    { call, route, body, description, request, callRecord }: Prepared,
    result: AttemptResult,
    state: Pick<Progress, 'history' | 'refusedAt'> & {
      readonly remainingMs: number;
      readonly isCredentialRenewed: boolean;
      readonly isObserved: boolean;
    },
  ): ResendDecision {
    if (isServed(result) && !state.isCredentialRenewed) return passedOn;
    const { recentResponses, clock } = this.#parts;
    const { history, refusedAt, remainingMs, isCredentialRenewed, isObserved } = state;
    const decision = resend({
      kind: route.upstream.kind,
      call: { ...description, replayable: body.replayable },
      outcome: outcomeOf(result, isCredentialRenewed),
      history,
      // The bucket serves other calls since it first refused this one: the refusal lies in the call, and not in the bucket.
      othersPass:
        refusedAt !== null && recentResponses.servesOthersSince(request.admission.bucket, refusedAt),
      remainingMs,
      passesThrottles: isObserved,
      hintlessMs: route.upstream.dialect?.hintlessMs ?? null,
      honouredMs: honouredWaitMs(call.rawFields),
    });
    if (decision.kind === 'resend' && decision.cause === 'hintless')
      recentResponses.noteRefused(request.admission.bucket);
    if (decision.closeMs > 0) callRecord.recording?.closed(clock.monotonic(), decision.closeMs);
    return decision;
  }

  /** The result is final. The response goes to the client, and the lease ends with it. @throws Refusal where there is no response */
  passOn(attempt: Attempt, result: AttemptResult, decision: Pass, record: AdmissionRecord): Outcome {
    const { prepared, lease } = attempt;
    if (result.kind === 'failed') {
      lease.settle(endOfBroken(result.error, prepared.description.safe, lease), null);
      const refusal = failureRefusal(result.error, decision.shouldRetry !== false);
      const code = result.error.kind === 'aborted' ? 'client_gone' : refusal.code;
      prepared.callRecord.attemptFailed(code, failureReason(result.error));
      throw refusal;
    }
    const { head, feedback, bodyFeedback } = result;
    const { body, done } = endAnswered(lease, result, decision);
    const { timeouts, commentMs } = prepared.route.upstream;
    const rateLimit = lease.ceiling;
    return {
      status: head.status,
      throttled: feedback.throttle !== null,
      errorStatus: () => feedback.errorStatus ?? bodyFeedback?.()?.errorStatus ?? null,
      fields: fieldsForClient(prepared, head, rateLimit !== null),
      upstreamFields: head.rawFields,
      body,
      maxUnreadMs: timeouts.idleMs,
      commentMs,
      record,
      rateLimit,
      // What the upstream says of repeating the call goes before what we would say.
      shouldRetry: saysWhetherToRetry(head.rawFields) ? null : decision.shouldRetry,
      onEnd: () => {
        done();
        this.#learnCharge(prepared, result);
        // Of meters whose level the upstream states, a recording has the charge as well.
        prepared.callRecord.recording?.charged(
          spent({ ...result, feedback: { ...feedback, meters: [] } }),
          feedback.meters,
        );
      },
    };
  }

  /** The call is sent again: its ticket goes back to its position. Returns whether that absorbs a throttled response. */
  sendAgain({ prepared, lease }: Attempt, result: AttemptResult, decision: SendAgain): boolean {
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
    if (guess !== null) this.#parts.estimates.learn(guess, feedback, bodyFeedback?.() ?? null);
  }
}

/** Most attempts are: there is nothing to decide. */
const isServed = (result: AttemptResult): boolean =>
  result.kind === 'answered' && statusOf(result) < 400 && result.feedback.throttle === null;

/** An attempt as the resend policy sees it. */
function outcomeOf(result: AttemptResult, isCredentialRenewed: boolean): ResendInput['outcome'] {
  if (result.kind === 'answered')
    return {
      kind: 'answered',
      status: statusOf(result),
      throttle: result.feedback.throttle,
      isCredentialRenewed,
    };
  const { neverSent, stale } = result.error;
  return { kind: neverSent ? 'never_sent' : stale ? 'stale' : 'fate_unknown' };
}

/** True where an upstream's response says itself whether its client should repeat the call. */
const saysWhetherToRetry = (rawFields: readonly string[]): boolean =>
  valuesOf(rawFields, 'x-should-retry').some((value) => /^\s*(?:true|false)\s*$/i.test(value));

// How a lease ends

/** How long a throttle inside a stream that names no time closes its bucket, milliseconds. */
const lateThrottleMs = 1_000;

/**
 * How long an upstream may need to notice that a connection was closed, milliseconds. A capped lane sends nothing for this time:
 * its next call uses another connection, and could overlap with the call that was given up.
 */
const closingMs = 20;

/** The bucket is closed for `closeMs`, the lane sleeps for `sleepMs`; `again`: the ticket goes back to its position. */
const throttled = (
  closeMs: number,
  sleepMs: number,
  closes: ResendDecision['closes'] = 'bucket',
  again = false,
): Settlement => ({
  kind: 'throttled',
  closeMs,
  ...(closes === 'credential' ? { closesCredential: true } : {}),
  requeue: again,
  sleepMs,
});

/** Puts the ticket back into its lane, at the same position. A call that was never sent gets its units and its slot back. */
export function requeue(lease: Lease, result: AttemptResult, decision: SendAgain): void {
  const { closes, closeMs, notBeforeMs } = decision;
  if (result.kind === 'failed' && result.error.neverSent)
    return lease.settle({ kind: 'returned', sleepMs: notBeforeMs, because: 'backoff' }, null);
  const sleepMs = closeMs >= notBeforeMs ? 0 : notBeforeMs;
  const lesson = result.kind === 'answered' ? result.lesson() : null;
  lease.settle(throttled(closeMs, sleepMs, closes, true), lesson);
}

/** Of a final attempt that broke, by what is known of the call's fate. `safe`: the call changes nothing upstream. */
function endOfBroken({ neverSent }: TransportError, safe: boolean, { grant }: Lease): Settlement {
  if (neverSent) return { kind: 'dropped' };
  if (!safe) return { kind: 'unknown' };
  return grant.holdsPlace ? throttled(0, closingMs) : { kind: 'succeeded', spent: null };
}

/**
 * The response is final. The lease of an uncapped lane ends with the response's head, the lease of a capped lane with the last byte that
 * the upstream sends, however slowly the client reads. Where the body states what the call has spent, or may still turn into a
 * throttle, the lease ends with the response. Returns the body to be passed on; `done` is to be called at the response's end.
 */
function endAnswered(lease: Lease, answered: Answered, { closes, closeMs }: Pass) {
  const { body, bodyFeedback } = answered;
  const succeeded = (lesson: Lesson | null): void =>
    lease.settle({ kind: 'succeeded', spent: spent(answered) }, lesson);
  const done = (): void => {
    const late = bodyFeedback?.() ?? null;
    if (late === null || late.throttle === null) return succeeded(null);
    // A stream that turned into a throttle closes the bucket for all workspaces, at its end; its own client has seen the event. What the
    // event states holds now, however long ago the head came.
    const lesson = { ...answered.lesson(), feedback: late, headAgoMs: 0 };
    lease.settle(throttled(late.throttle.waitMs ?? lateThrottleMs, 0), lesson);
  };
  if (closeMs > 0 && (closes === 'bucket' || closes === 'credential')) {
    lease.settle(throttled(closeMs, 0, closes), answered.lesson());
  } else if (lease.grant.holdsPlace && !Buffer.isBuffer(body)) {
    lease.learn(answered.lesson());
    const over = (): void => {
      const isThrottled = (bodyFeedback?.()?.throttle ?? null) !== null;
      if (body.readableEnded || isThrottled) done();
      else lease.settle(throttled(0, closingMs), null);
    };
    return { body: readAhead(body, over), done: over };
  } else if (bodyFeedback !== null) lease.learn(answered.lesson());
  else succeeded(answered.lesson());
  return { body, done };
}

/** What the upstream says that it took for the call; `null` = it does not say. */
const spent = (answered: Answered): ReturnType<typeof spentOf> =>
  spentOf(statusOf(answered), answered.feedback, answered.bodyFeedback?.() ?? null);

// What a client gets of the final result of its call's attempts, the fields of the upstream's response, cleaned, or a refusal, and how
// the call's end is reported to telemetry.

/** Codes of a call whose exchange broke; of all other faults the upstream did not answer. */
const failures: Partial<Record<TransportError['kind'], RefusalCode>> = {
  address_denied: 'target_address_denied',
  invalid: 'upstream_invalid',
  timeout: 'upstream_timeout',
};

/** `mayRepeat`: false when repeating could run the call twice. */
function failureRefusal(error: TransportError, mayRepeat: boolean): Refusal {
  const detail = failureWords(error);
  return new Refusal(failures[error.kind] ?? 'upstream_unreachable', {
    ...(detail === null ? {} : { detail }),
    ...(mayRepeat ? {} : { shouldRetry: false }),
  });
}

/** The fields of an upstream's response in the form of this call. */
export function fieldsForClient(
  { call, route, egress }: Prepared,
  { rawFields, status }: ResponseHead,
  addsRateLimit: boolean,
): Outcome['fields'] {
  const { keyFields, routes } = egress;
  const { upstream, origin, pathAndQuery } = route;
  const cookies = cookieScope(call, route);
  /** Links of the same upstream lead the client back to us. */
  const baseFor = (url: URL): string | null => {
    const prefix = routes.viaPrefix(upstream, url);
    return prefix && ownOrigin(call.rawFields) + prefix;
  };
  const links = { target: origin + pathAndQuery, baseFor: call.form === 'via' ? baseFor : null };
  return returningFields({ rawFields, status, addsRateLimit, keyFields, cookies, links });
}

/**
 * Origin under which the client reached us, for links that it will follow: many clients parse a link as an absolute
 * URL only. Empty when the client named no host (HTTP/1.0); a path is all we can say then. It comes from the client
 * and goes back to nobody else.
 */
function ownOrigin(rawFields: readonly string[]): string {
  const [host = ''] = valuesOf(rawFields, 'host')
    .map((value) => value.trim())
    .filter((value) => value !== '');
  // A chain of proxies appends; the first one saw the client.
  const isSecure = valuesOf(rawFields, 'x-forwarded-proto').some((value) =>
    /^\s*https\s*(?:,|$)/i.test(value),
  );
  return /^[a-z0-9.:[\]_-]+$/i.test(host) ? `${isSecure ? 'https' : 'http'}://${host}` : '';
}

/** The outcome, which reports its end when its response has ended. Each call ends once, with the first report. */
export const reportedAtItsEnd = (outcome: Outcome, callRecord: CallRecord): Outcome => ({
  ...outcome,
  onEnd: (how) => {
    outcome.onEnd(how);
    const { status, body, throttled, errorStatus, record: admission } = outcome;
    const ended = (as: Parameters<CallRecord['ended']>[0]['outcome']): void =>
      callRecord.ended({ outcome: as, status, code: null, admission });
    // A response that is whole and holds an error is no success, whatever its head said.
    if (how === 'complete') return ended(outcomeOfResponse(errorStatus?.() ?? status, throttled));
    if (how === 'client_gone') return ended(how);
    // It broke after its head had gone on: the attempt failed as well, and its body knows why.
    const error = body === null || Buffer.isBuffer(body) ? null : body.errored;
    if (error !== null) callRecord.attemptFailed('upstream_unreachable', failureReason(bodyError(error)));
    ended('failed');
  },
});

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

/** Outcome of an upstream response that is passed to the client. `throttle`: it was classified as one. */
const outcomeOfResponse = (status: number, throttle: boolean): CallOutcome =>
  throttle || status === 429 ? 'throttled' : status >= 400 ? 'upstream_error' : 'ok';
