/**
 * The journey from the lane to the answer: enter, then (granted → send → learn → judge) until a result is final.
 *
 * Owns: the one loop of resends. Refuses to own: any decision in it; what comes before admission (`prepare.ts`).
 * Invariants: every resend goes through admission again; every attempt's lease is settled once; the ticket always leaves.
 */
import { Buffer } from 'node:buffer';
import type { AdmissionQueue } from '../admission/admission.ts';
import type { RecentRefusals } from '../admission/recent-refusals.ts';
import type { Lease, Ticket } from '../admission/ticket.ts';
import type { Breakers, Probe } from '../breaker/breakers.ts';
import { observationOf } from '../breaker/observation.policy.ts';
import type { AdmissionRecord, InjectedField, Outcome } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import type { Credentials } from '../credentials/credentials.ts';
import type { AttemptResult } from '../dispatch/attempt.ts';
import type { Dispatcher } from '../dispatch/dispatcher.ts';
import { failureReason } from '../dispatch/failure-reason.policy.ts';
import { upstreamIdOf } from '../dispatch/upstream-id.policy.ts';
import type { TokenEstimates } from '../dispatch/token-estimates.ts';
import type { TransportError } from '../dispatch/transport-error.ts';
import { Refusal } from '../errors.ts';
import type { Ceilings } from '../limiter/ceilings.ts';
import type { Audience } from '../repeats/repeat.ts';
import type { JoinedQuotas } from '../quotas/joined-quotas.ts';
import type { RouteFinder } from '../target/route.ts';
import type { CallTelemetry, Telemetry } from '../telemetry/events.ts';
import type { AnswerTimes } from './answer-times.ts';
import { answerOutcome, failureRefusal, rateLimitOf, type Answered } from './answer.ts';
import { CallCredential, type Readiness } from './call-credential.ts';
import { endAnswered, endBroken, requeue, returnGrant, type Passed, type Resent } from './lease-end.ts';
import { judge, type Progress } from './judge.ts';
import { beginUnder, returnedWhilePaused, type CallControls } from './paused.ts';
import type { Prepared } from './prepare.ts';

/** A call that met a stale connection may wait this long for its second grant, whatever is left of its wait. Milliseconds. */
const staleGraceMs = 1_000;

export interface ForwardParts {
  readonly controls: CallControls;
  readonly admission: AdmissionQueue;
  readonly recentRefusals: RecentRefusals;
  readonly ceilings: Ceilings;
  readonly breakers: Breakers;
  readonly dispatcher: Dispatcher;
  readonly estimates: TokenEstimates;
  readonly answerTimes: AnswerTimes;
  readonly clock: Clock;
  readonly quotas: JoinedQuotas;
  readonly telemetry: Pick<Telemetry, 'leaseLost' | 'refusedAgain'>;
  /** As they are configured now. */
  readonly routes: () => RouteFinder;
  readonly settings: () => Settings;
  readonly credentials: Credentials;
}

const noHistory: Progress['history'] = {};

/** One attempt of a call, under its lease. */
interface Attempt {
  readonly prepared: Prepared;
  readonly lease: Lease;
  readonly field: InjectedField | null;
  readonly followed: CallTelemetry;
}

export class Forwarder {
  readonly #parts: ForwardParts;

  constructor(parts: ForwardParts) {
    this.#parts = parts;
  }

  /** `nobodyLeft` ends the journey: no client waits for the answer any more. */
  async forward(prepared: Prepared, nobodyLeft: Audience, followed: CallTelemetry): Promise<Outcome> {
    const progress: Progress = { attempts: 0, absorbed: 0, history: noHistory };
    const { credentials, settings, controls } = this.#parts;
    const credential = new CallCredential(credentials, settings, prepared);
    let ticket: Ticket | null = null;
    // Kept over resends: whoever asks for the others must not be answered by the breaker that waits for its answer.
    let probe: Probe | null = null;
    try {
      const refusal = this.#parts.breakers.refusalOf(prepared.request.subject);
      if (refusal !== null) throw refusal;
      credential.ready(prepared.request.maxWaitMs);
      if (!controls.isQuiet) await beginUnder(controls, prepared.request);
      ticket = await this.#enter(prepared, nobodyLeft);
      for (;;) {
        followed.queued(prepared.request.admission.lane);
        const lease = await ticket.granted();
        const readiness = readyOrReturned(credential, lease, ticket.remainingMs());
        if (readiness.kind === 'pause') continue;
        if (returnedWhilePaused(controls.pausedMs(prepared.request.upstream), lease, ticket)) continue;
        if (probe === null && !this.#parts.breakers.areClosed) probe = await this.#pass(prepared, lease);
        if (!lease.holds()) {
          this.#parts.telemetry.leaseLost('stalled');
          returnGrant(lease);
          continue;
        }
        followed.granted();
        progress.attempts += 1;
        nobodyLeft.moved?.('upstream');
        const attempt: Attempt = { prepared, lease, field: readiness.field, followed };
        const result = await this.#send(attempt, nobodyLeft);
        if (isDecisive(result)) {
          this.#informBreakers(prepared, probe, result);
          probe = null;
        }
        // A call nobody waits for any more has no wait left: it is not sent again, and its lane does not sleep for it.
        const remainingMs = nobodyLeft.aborted ? 0 : ticket.remainingMs();
        const isCredentialRenewed =
          result.kind === 'answered' && (await credential.isRenewedAfter(result.feedback));
        const decision = judge(prepared, result, { ...progress, remainingMs, isCredentialRenewed });
        if (decision.kind === 'pass') {
          if (result.kind === 'failed') throw giveUp(attempt, result.error, decision);
          return this.#passOn(attempt, decision, { answered: result, record: recordOf(progress, ticket) });
        }
        progress.history = decision.history;
        if (decision.cause === 'stale') ticket.lengthen(staleGraceMs);
        requeue(lease, result, decision);
        nobodyLeft.moved?.('lane');
        if (result.kind === 'answered') this.#learnCharge(prepared, result);
        if (isAbsorbed(result, decision, followed)) progress.absorbed += 1;
      }
    } catch (thrown) {
      const failure = credential.reasonOf(thrown);
      // A refusal names how much of the ceiling is left. Nobody reads it when every client is gone.
      if (!nobodyLeft.aborted) {
        const { recentRefusals, ceilings } = this.#parts;
        const known = recentRefusals.ceilingOf(failure) ?? ceilings.state(prepared.request.ceiling);
        const rateLimit = rateLimitOf(await known);
        prepared.call.report({ record: recordOf(progress, ticket), rateLimit });
      }
      throw failure;
    } finally {
      if (probe !== null) this.#informBreakers(prepared, probe, null);
      ticket?.leave();
    }
  }

  /** Takes the call into its lane, unless the same was refused a moment ago: then it is refused without a question to the store. */
  async #enter({ request }: Prepared, nobodyLeft: Audience): Promise<Ticket> {
    const { admission, ceilings, recentRefusals, telemetry } = this.#parts;
    const again = recentRefusals.refusalOf(request);
    if (again !== null) {
      telemetry.refusedAgain(request.upstream);
      throw again;
    }
    try {
      return await admission.enter(request, nobodyLeft);
    } catch (failure) {
      if (failure instanceof Refusal && !nobodyLeft.aborted) {
        recentRefusals.note(request, failure, ceilings.state(request.ceiling));
      }
      throw failure;
    }
  }

  /** Asks the breakers before a call is sent. A call that they refuse gives its lease back. */
  async #pass({ request }: Prepared, lease: Lease): Promise<Probe | null> {
    try {
      return await this.#parts.breakers.pass(request.subject);
    } catch (refusal) {
      lease.settle({ kind: 'dropped' }, null);
      throw refusal;
    }
  }

  /** Reports to the breakers how an attempt ended; `null` = nothing to report. */
  #informBreakers({ request }: Prepared, probe: Probe | null, result: AttemptResult | null): void {
    const observation = observationOf(result);
    if (probe === null && observation.kind !== 'refused') return;
    this.#parts.breakers.observe(request.subject, probe, observation);
  }

  async #send({ prepared, lease, field, followed }: Attempt, signal: CallSignal): Promise<AttemptResult> {
    followed.sent();
    const sentAt = this.#parts.clock.monotonic();
    const sending = {
      lane: lease.grant.lane,
      credential: field,
      traceparent: followed.traceparent(),
      signal,
    };
    const result = await this.#parts.dispatcher.send(prepared, sending).catch((bug: unknown) => {
      lease.settle({ kind: 'unknown' }, null);
      throw bug;
    });
    if (result.kind === 'answered') {
      const { throttle } = result.feedback;
      this.#parts.quotas.noteOwner(prepared.ownQuota, result.feedback);
      const upstreamId = throttle === null ? null : upstreamIdOf(result.head.rawFields);
      followed.answered(result.head.status, throttle, upstreamId);
      if (throttle === null && result.head.status < 500) {
        const { bucket } = prepared.request.admission;
        this.#parts.answerTimes.note(bucket, this.#parts.clock.monotonic() - sentAt);
      }
    }
    return result;
  }

  #learnCharge({ guess }: Prepared, { feedback, later }: Answered): void {
    if (guess !== null) this.#parts.estimates.learn(guess, feedback, later?.feedback() ?? null);
  }

  #passOn(
    attempt: Attempt,
    decision: Passed,
    { answered, record }: { readonly answered: Answered; readonly record: AdmissionRecord },
  ): Outcome {
    const { prepared, lease } = attempt;
    const { call, route, request } = prepared;
    const capped = request.admission.maxInFlight !== null;
    const { body, done } = endAnswered(lease, answered, { ...decision, capped });
    const onEnd = (): void => {
      done();
      this.#learnCharge(prepared, answered);
    };
    return answerOutcome({
      answered: { ...answered, body },
      route,
      call,
      record,
      rateLimit: rateLimitOf(lease.ceiling),
      shouldRetry: decision.shouldRetry,
      viaPrefix: (url) => this.#parts.routes().viaPrefix(route.upstream, url),
      onEnd,
    });
  }
}

const recordOf = ({ attempts, absorbed }: Progress, ticket: Ticket | null): AdmissionRecord => ({
  waitedMs: ticket?.waitedMs() ?? 0,
  attempts,
  absorbed,
});

/** Whether an attempt tells if the upstream still refuses. One that does not may be followed by another of the same call. */
const isDecisive = (result: AttemptResult): boolean => observationOf(result).kind !== 'silent';

/** Without a credential the grant goes back, and the lane sleeps until it is looked for again. */
function readyOrReturned(credential: CallCredential, lease: Lease, remainingMs: number): Readiness {
  try {
    const readiness = credential.ready(remainingMs);
    if (readiness.kind === 'pause') returnGrant(lease, readiness.sleepMs);
    return readiness;
  } catch (refusal) {
    returnGrant(lease);
    throw refusal;
  }
}

/** The final attempt broke: the lease ends, the client gets a refusal. */
function giveUp({ prepared, lease, followed }: Attempt, error: TransportError, decision: Passed): Refusal {
  const { description, request } = prepared;
  const capped = request.admission.maxInFlight !== null;
  endBroken(lease, error, { safe: description.safe, capped });
  const refusal = failureRefusal(error, decision.shouldRetry !== false);
  followed.attemptFailed(error.kind === 'aborted' ? 'client_gone' : refusal.code, failureReason(error));
  return refusal;
}

/** An attempt whose call is sent again is over. True when a throttled answer is kept from the client with it. */
function isAbsorbed(result: AttemptResult, { cause }: Resent, followed: CallTelemetry): boolean {
  if (result.kind === 'answered') {
    if (!Buffer.isBuffer(result.body)) result.body.destroy();
    if (result.feedback.throttle !== null) {
      followed.absorbed();
      return true;
    }
  }
  const broken = cause === 'credential' ? 'credential_unavailable' : 'reset';
  followed.attemptFailed(broken, result.kind === 'failed' ? failureReason(result.error) : null);
  return false;
}
