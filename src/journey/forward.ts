/**
 * The journey from the lane to the answer: enter, then (granted → send → learn → judge) until a result is final.
 *
 * Owns: the one loop of resends. Refuses to own: any decision in it; what comes before admission (`prepare.ts`).
 * Invariants: every resend goes through admission again; every attempt's lease is settled once; the ticket always leaves.
 */
import { Buffer } from 'node:buffer';
import type { AdmissionQueue } from '../admission/admission.ts';
import type { Lease, Ticket } from '../admission/ticket.ts';
import type { AdmissionRecord, Outcome } from '../call.ts';
import type { AttemptResult } from '../dispatch/attempt.ts';
import type { Dispatcher } from '../dispatch/dispatcher.ts';
import { resend, type ResendDecision, type ResendHistory } from '../dispatch/resend.policy.ts';
import type { TransportError } from '../dispatch/transport-error.ts';
import type { Refusal } from '../errors.ts';
import type { Ceilings } from '../limiter/ceilings.ts';
import type { RouteFinder } from '../target/route.ts';
import type { CallTelemetry, Telemetry } from '../telemetry/events.ts';
import { answerOutcome, failureRefusal, rateLimitOf, type Answered } from './answer.ts';
import { endAnswered, endBroken, requeue, returnGrant, type Passed } from './lease-end.ts';
import type { Prepared } from './prepare.ts';

/** A call that met a stale connection may wait this long for its second grant, whatever is left of its wait. Milliseconds. */
const staleGraceMs = 1_000;

export interface ForwardParts {
  readonly admission: AdmissionQueue;
  readonly ceilings: Ceilings;
  readonly dispatcher: Dispatcher;
  readonly telemetry: Pick<Telemetry, 'leaseLost'>;
  /** As they are configured now. */
  readonly routes: () => RouteFinder;
}

/** A call between two attempts. */
interface Progress {
  attempts: number;
  absorbed: number;
  history: ResendHistory;
}

/** One attempt of a call, under its lease. */
interface Attempt {
  readonly prepared: Prepared;
  readonly lease: Lease;
  readonly followed: CallTelemetry;
}

export class Forwarder {
  readonly #parts: ForwardParts;

  constructor(parts: ForwardParts) {
    this.#parts = parts;
  }

  /** `nobodyLeft` ends the journey: no client waits for the answer any more. */
  async forward(prepared: Prepared, nobodyLeft: AbortSignal, followed: CallTelemetry): Promise<Outcome> {
    const progress: Progress = { attempts: 0, absorbed: 0, history: {} };
    let ticket: Ticket | null = null;
    try {
      ticket = await this.#parts.admission.enter(prepared.request, nobodyLeft);
      for (;;) {
        followed.queued(prepared.request.admission.lane);
        const lease = await ticket.granted();
        if (!lease.holds()) {
          this.#parts.telemetry.leaseLost('stalled');
          returnGrant(lease);
          continue;
        }
        followed.granted();
        progress.attempts += 1;
        const attempt: Attempt = { prepared, lease, followed };
        const result = await this.#send(attempt, nobodyLeft);
        // A call nobody waits for any more has no wait left: it is not sent again, and its lane does not sleep for it.
        const remainingMs = nobodyLeft.aborted ? 0 : ticket.remainingMs();
        const decision = judge(prepared, result, { ...progress, remainingMs });
        if (decision.kind === 'pass') {
          if (result.kind === 'failed') throw giveUp(attempt, result.error, decision);
          return this.#passOn(attempt, decision, { answered: result, record: recordOf(progress, ticket) });
        }
        progress.history = decision.history;
        if (decision.cause === 'stale') ticket.lengthen(staleGraceMs);
        requeue(lease, result, decision);
        if (isAbsorbed(result, followed)) progress.absorbed += 1;
      }
    } catch (failure) {
      // A refusal names how much of the ceiling is left. Nobody reads it when every client is gone.
      if (!nobodyLeft.aborted) {
        const rateLimit = rateLimitOf(await this.#parts.ceilings.state(prepared.request.ceiling));
        prepared.call.report({ record: recordOf(progress, ticket), rateLimit });
      }
      throw failure;
    } finally {
      ticket?.leave();
    }
  }

  async #send({ prepared, lease, followed }: Attempt, signal: AbortSignal): Promise<AttemptResult> {
    followed.sent();
    const { lane } = prepared.request.admission;
    const sending = { lane, traceparent: followed.traceparent(), signal };
    const result = await this.#parts.dispatcher.send(prepared, sending).catch((bug: unknown) => {
      lease.settle({ kind: 'unknown' }, null);
      throw bug;
    });
    if (result.kind === 'answered') followed.answered(result.head.status, result.feedback.throttle);
    return result;
  }

  #passOn(
    { prepared: { call, route, request }, lease }: Attempt,
    decision: Passed,
    { answered, record }: { readonly answered: Answered; readonly record: AdmissionRecord },
  ): Outcome {
    const capped = request.admission.maxInFlight !== null;
    const { body, done } = endAnswered(lease, answered, { ...decision, capped });
    return answerOutcome({
      answered: { ...answered, body },
      route,
      call,
      record,
      rateLimit: rateLimitOf(lease.ceiling),
      shouldRetry: decision.shouldRetry,
      viaPrefix: (url) => this.#parts.routes().viaPrefix(route.upstream, url),
      onEnd: done,
    });
  }
}

const recordOf = ({ attempts, absorbed }: Progress, ticket: Ticket | null): AdmissionRecord => ({
  waitedMs: ticket?.waitedMs() ?? 0,
  attempts,
  absorbed,
});

/** What the resend policy makes of an attempt. */
function judge(
  { route, body, description }: Prepared,
  result: AttemptResult,
  { attempts, history, remainingMs }: Omit<Progress, 'absorbed'> & { readonly remainingMs: number },
): ResendDecision {
  return resend({
    kind: route.upstream.kind,
    call: { ...description, replayable: body.replayable },
    outcome:
      result.kind === 'answered'
        ? { kind: 'answered', status: result.head.status, throttle: result.feedback.throttle }
        : { kind: fateOf(result.error) },
    attempts,
    history,
    remainingMs,
  });
}

function fateOf({ neverSent, stale }: TransportError): 'never_sent' | 'stale' | 'fate_unknown' {
  if (neverSent) return 'never_sent';
  return stale ? 'stale' : 'fate_unknown';
}

/** The final attempt broke: the lease ends, the client gets a refusal. */
function giveUp({ prepared, lease, followed }: Attempt, error: TransportError, decision: Passed): Refusal {
  const { description, request } = prepared;
  const capped = request.admission.maxInFlight !== null;
  endBroken(lease, error, { safe: description.safe, capped });
  const refusal = failureRefusal(error, decision.shouldRetry !== false);
  followed.attemptFailed(error.kind === 'aborted' ? 'client_gone' : refusal.code);
  return refusal;
}

/** An attempt whose call is sent again is over. True when a throttled answer is kept from the client with it. */
function isAbsorbed(result: AttemptResult, followed: CallTelemetry): boolean {
  if (result.kind === 'answered') {
    if (!Buffer.isBuffer(result.body)) result.body.destroy();
    if (result.feedback.throttle !== null) {
      followed.absorbed();
      return true;
    }
  }
  followed.attemptFailed('reset');
  return false;
}
