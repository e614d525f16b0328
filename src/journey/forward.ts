/**
 * The journey from the lane to the response: enter, then (granted → send → learn → judge) until a result is final.
 *
 * Owns: the one loop of resends. Does not own: any decision in it; what comes before admission (`prepare.ts`);
 * one attempt (`attempts.ts`).
 * Invariants: every resend goes through admission again; every attempt's lease is settled once; the ticket always leaves.
 */
import type { AdmissionQueue } from '../admission/admission.ts';
import type { Lease, Ticket } from '../admission/ticket.ts';
import type { Breakers, Probe } from '../breaker/breakers.ts';
import { observationOf } from '../breaker/observation.policy.ts';
import type { AdmissionRecord, Outcome, ResponseHead } from '../call.ts';
import type { Settings } from '../config/settings.ts';
import type { Credentials } from '../credentials/credentials.ts';
import type { AttemptResult } from '../dispatch/attempt.ts';
import type { Ceilings } from '../limiter/ceilings.ts';
import type { Audience } from '../repeats/repeat.ts';
import type { CallRecord } from '../telemetry/call-record.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { rateLimitOf } from './response.ts';
import { Attempts, giveUp, endResent, type Attempt, type AttemptsParts } from './attempts.ts';
import { CallCredential, type Readiness } from './call-credential.ts';
import { requeue, returnGrant } from './lease-end.ts';
import { judge, type Progress } from './judge.ts';
import { beginUnder, returnedWhilePaused, type CallControls } from './paused.ts';
import type { Prepared } from './prepare.ts';

/**
 * A call that is sent again at once, because it met a stale connection or an ended credential, may wait this long for its
 * second grant, whatever is left of its wait. Milliseconds.
 */
const atOnceGraceMs = 1_000;

export interface ForwardParts extends AttemptsParts {
  readonly controls: CallControls;
  readonly admission: AdmissionQueue;
  readonly ceilings: Ceilings;
  readonly breakers: Breakers;
  readonly telemetry: Pick<Telemetry, 'leaseLost'>;
  /** As they are configured now. */
  readonly settings: () => Settings;
  readonly credentials: Credentials;
}

const noHistory: Progress['history'] = {};

export class Forwarder {
  readonly #parts: ForwardParts;
  readonly #attempts: Attempts;

  constructor(parts: ForwardParts) {
    this.#parts = parts;
    this.#attempts = new Attempts(parts);
  }

  /** The fields of an upstream's response in the form of this call. */
  fieldsFor(prepared: Prepared, head: ResponseHead, addsRateLimit: boolean): readonly string[] {
    return this.#attempts.fieldsFor(prepared, head, addsRateLimit);
  }

  /** The journey ends when `audience` aborts: no client waits for the response any more. */
  async forward(prepared: Prepared, audience: Audience, callRecord: CallRecord): Promise<Outcome> {
    const progress: Progress = { attempts: 0, absorbed: 0, history: noHistory, refusedAt: null };
    const { credentials, settings, controls } = this.#parts;
    const credential = new CallCredential(credentials, settings, prepared);
    let ticket: Ticket | null = null;
    // A probe is kept over resends: the open breaker waits for the response of this call, and must not refuse it.
    let probe: Probe | null = null;
    try {
      const refusal = this.#parts.breakers.openBreakerRefusal(prepared.request.subject);
      if (refusal !== null) throw refusal;
      credential.ready(prepared.request.maxWaitMs);
      if (!controls.isQuiet) await beginUnder(controls, prepared.request);
      ticket = await this.#parts.admission.enter(prepared.request, audience);
      for (;;) {
        callRecord.queued();
        const lease = await ticket.whenGranted();
        const readiness = readyOrReturned(credential, lease, ticket.remainingMs());
        if (readiness.kind === 'pause') continue;
        if (returnedWhilePaused(controls.pausedMs(prepared.request.subject.upstream), lease, ticket))
          continue;
        if (probe === null && !this.#parts.breakers.areClosed) probe = await this.#pass(prepared, lease);
        if (!lease.holds()) {
          this.#parts.telemetry.leaseLost('stalled');
          returnGrant(lease);
          continue;
        }
        progress.attempts += 1;
        audience.moved?.('upstream');
        const traceparent = callRecord.sent();
        const attempt: Attempt = {
          prepared,
          lease,
          callRecord,
          traceparent,
          credential: readiness.field,
          lane: lease.grant.lane,
          signal: audience,
        };
        const result = await this.#attempts.send(attempt);
        if (isDecisive(result)) {
          this.#informBreakers(prepared, probe, result);
          probe = null;
        }
        // A call nobody waits for any more has no wait left: it is not sent again, and its lane does not sleep for it.
        const remainingMs = audience.aborted ? 0 : ticket.remainingMs();
        const isCredentialRenewed =
          result.kind === 'answered' && (await credential.isRenewedAfter(result.feedback));
        const othersPass = this.#othersPass(prepared, progress);
        const decision = judge(prepared, result, {
          ...progress,
          othersPass,
          remainingMs,
          isCredentialRenewed,
        });
        if (decision.kind === 'pass') {
          if (result.kind === 'failed') throw giveUp(attempt, result.error, decision);
          return this.#attempts.passOn(attempt, decision, {
            answered: result,
            record: recordOf(progress, ticket),
          });
        }
        progress.history = decision.history;
        // The first of them: a refusal comes faster than the response to a call that was sent at the same time.
        if (decision.cause === 'hintless') progress.refusedAt ??= this.#parts.clock.monotonic();
        if (decision.notBeforeMs === 0) ticket.ensureTimeLeft(atOnceGraceMs);
        requeue(lease, result, decision);
        audience.moved?.('lane');
        if (result.kind === 'answered') this.#attempts.learnCharge(prepared, result);
        if (endResent(result, decision, callRecord)) progress.absorbed += 1;
      }
    } catch (thrown) {
      const failure = credential.reasonOf(thrown);
      // A refusal names how much of the ceiling is left. Nobody reads it when every client is gone.
      if (!audience.aborted) {
        const rateLimit = rateLimitOf(await this.#parts.ceilings.state(prepared.request.ceiling));
        prepared.call.report({ record: recordOf(progress, ticket), rateLimit });
      }
      throw failure;
    } finally {
      if (probe !== null) this.#informBreakers(prepared, probe, null);
      ticket?.leave();
    }
  }

  /** True when the bucket has served calls since it first refused this one: the refusal lies in the call, and not in the bucket. */
  #othersPass({ request }: Prepared, { refusedAt }: Progress): boolean {
    const { bucket } = request.admission;
    return refusedAt !== null && this.#parts.responseTimes.hasServedSince(bucket, refusedAt);
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
    const { awaitSuccess } = this.#parts.breakers;
    if (probe === null && observation.kind !== 'refused' && !awaitSuccess) return;
    this.#parts.breakers.observe(request.subject, probe, observation);
  }
}

const recordOf = ({ attempts, absorbed }: Progress, ticket: Ticket | null): AdmissionRecord => ({
  waitedMs: ticket?.waitedMs() ?? 0,
  attempts,
  absorbed,
});

/** True when an attempt shows whether the upstream still refuses. A probe lasts until an attempt of its call is decisive. */
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
