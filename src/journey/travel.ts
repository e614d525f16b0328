/**
 * The journey from the lane to the answer: enter, then (granted → send → learn → judge) until a result is final.
 *
 * Owns: the one loop of resends. Refuses to own: any decision in it; what comes before admission (`prepare.ts`).
 * Invariants: every resend goes through admission again; every attempt's lease is settled once; the ticket always leaves.
 */
import { Buffer } from 'node:buffer';
import type { Desk } from '../admission/admit.ts';
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
import { comeAgain, endAnswered, endBroken, goBack, type Passed } from './lease-end.ts';
import type { Prepared } from './prepare.ts';

/** A call that met a stale connection may wait this long for its second grant, whatever is left of its wait. Milliseconds. */
const staleGraceMs = 1_000;

export interface TravelParts {
  readonly desk: Desk;
  readonly ceilings: Ceilings;
  readonly dispatcher: Dispatcher;
  readonly telemetry: Pick<Telemetry, 'leaseLost'>;
  /** As they are configured now. */
  readonly routes: () => RouteFinder;
}

/** `nobodyLeft` ends the journey: no client waits for the answer any more. */
export type Travel = (
  prepared: Prepared,
  nobodyLeft: AbortSignal,
  followed: CallTelemetry,
) => Promise<Outcome>;

export function createTravel({ desk, ceilings, dispatcher, telemetry, routes }: TravelParts): Travel {
  const send = async (
    { call, caller, route, body, description, entry }: Prepared,
    lease: Lease,
    signal: AbortSignal,
    followed: CallTelemetry,
  ): Promise<AttemptResult> => {
    followed.sent();
    const { keyFields } = caller;
    const traceparent = followed.traceparent();
    const { lane, weight } = entry.admission;
    const workspace = entry.ceiling.key;
    const result = await dispatcher
      .send({
        call,
        route,
        description,
        body: body.bytes,
        keyFields,
        traceparent,
        lane,
        workspace,
        weight,
        signal,
      })
      .catch((bug: unknown) => {
        lease.settle({ kind: 'unknown' }, null);
        throw bug;
      });
    if (result.kind === 'failed') return result;
    followed.answered(result.head.status, result.feedback.throttle);
    return result;
  };

  const passOn = (
    { call, route, entry }: Prepared,
    lease: Lease,
    answered: Answered,
    decision: Passed,
    record: AdmissionRecord,
  ): Outcome => {
    const capped = entry.admission.maxInFlight !== null;
    const { body, done } = endAnswered(lease, answered, decision, capped);
    return answerOutcome({
      answered: { ...answered, body },
      route,
      call,
      record,
      rateLimit: rateLimitOf(lease.ceiling),
      shouldRetry: decision.shouldRetry,
      viaPrefix: (url) => routes().viaPrefix(route.upstream, url),
      onEnd: done,
    });
  };

  return async (prepared, nobodyLeft, followed) => {
    let ticket: Ticket | null = null;
    let absorbed = 0;
    let attempts = 0;
    let history: ResendHistory = {};
    const record = (): AdmissionRecord => ({ waitedMs: ticket?.waitedMs() ?? 0, attempts, absorbed });
    try {
      ticket = await desk.enter({ ...prepared.entry, clientGone: nobodyLeft });
      for (;;) {
        followed.queued(prepared.entry.admission.lane);
        const lease = await ticket.granted();
        if (!lease.holds()) {
          telemetry.leaseLost('stalled');
          comeAgain(lease);
          continue;
        }
        followed.granted();
        attempts += 1;
        const result = await send(prepared, lease, nobodyLeft, followed);
        // A call nobody waits for any more has no wait left: it is not sent again, and its lane does not sleep for it.
        const remainingMs = nobodyLeft.aborted ? 0 : ticket.remainingMs();
        const decision = judge(prepared, result, { attempts, history, remainingMs });
        if (decision.kind === 'pass') {
          if (result.kind === 'failed') throw giveUp(prepared, lease, result.error, decision, followed);
          return passOn(prepared, lease, result, decision, record());
        }
        history = decision.history;
        if (decision.cause === 'stale') ticket.lengthen(staleGraceMs);
        goBack(lease, result, decision);
        if (isAbsorbed(result, followed)) absorbed += 1;
      }
    } catch (failure) {
      const rateLimit = rateLimitOf(await ceilings.state(prepared.entry.ceiling));
      prepared.call.tell({ record: record(), rateLimit });
      throw failure;
    } finally {
      ticket?.leave();
    }
  };
}

/** What the resend policy makes of an attempt. */
function judge(
  { route, body, description }: Prepared,
  result: AttemptResult,
  soFar: { readonly attempts: number; readonly history: ResendHistory; readonly remainingMs: number },
): ResendDecision {
  return resend({
    kind: route.upstream.kind,
    call: { ...description, replayable: body.replayable },
    outcome:
      result.kind === 'answered'
        ? { kind: 'answered', status: result.head.status, throttle: result.feedback.throttle }
        : { kind: fateOf(result.error) },
    ...soFar,
  });
}

function fateOf({ neverSent, stale }: TransportError): 'never_sent' | 'stale' | 'fate_unknown' {
  if (neverSent) return 'never_sent';
  return stale ? 'stale' : 'fate_unknown';
}

/** The final attempt broke: the lease ends, the client is told. */
function giveUp(
  { description, entry }: Prepared,
  lease: Lease,
  error: TransportError,
  decision: Passed,
  followed: CallTelemetry,
): Refusal {
  endBroken(lease, error, description.safe, entry.admission.maxInFlight !== null);
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
