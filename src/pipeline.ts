/**
 * READ FIRST. The flow of a call, from its request to its outcome:
 *
 *   authenticate → resolve the target → read the body → enter the lane → (granted → send → learn → judge)* → response
 *
 * Owns: the order of the stages, what they hand each other, and the one loop of resends. Does not own: any decision inside a stage.
 * Invariants: the API key never reaches an upstream; every resend goes through admission again; every attempt's lease is settled
 * once; the ticket always leaves.
 */
import type { Ticket } from './admission/ticket.ts';
import { authenticate } from './auth/authenticate.ts';
import type { AdmissionRecord, Audience, Call, Caller, Outcome, Reckoned } from './call.ts';
import {
  Attempts,
  type Attempt,
  type Progress,
  reportedAtItsEnd,
  reportFailure,
} from './journey/attempts.ts';
import { type FlowParts, prepare, type Prepared } from './journey/prepare.ts';
import { SendChecks } from './journey/send-checks.ts';
import type { Runtime } from './runtime.ts';
import type { CallRecord } from './telemetry/call-record.ts';

/** Sends a call as often as it takes, for everybody who waits for its response. */
export type Forward = (prepared: Prepared, audience: Audience) => Promise<Outcome>;

export interface PipelineParts extends FlowParts {
  /**
   * Where features hook into the flow: answers a call that repeats another one; has any other call made with `forward`. What has to know of
   * a call's end listens to telemetry (activity, the page).
   */
  readonly around: (prepared: Prepared, forward: Forward) => Promise<Outcome>;
}

/** One object for all calls, of which thousands wait. */
const neverSent: Progress['history'] = {};

export class Pipeline {
  readonly #parts: PipelineParts;
  readonly #attempts: Attempts;

  constructor(parts: PipelineParts) {
    this.#parts = parts;
    this.#attempts = new Attempts(parts);
  }

  /** The flow of one call. Rejects with a `Refusal`, with `clientGone.reason`, or with a bug. */
  readonly handle = async (call: Call): Promise<Outcome> => {
    const callRecord = this.#parts.telemetry.begin(call);
    try {
      const prepared = await this.#prepare(call, callRecord);
      return reportedAtItsEnd(await this.#parts.around(prepared, this.#forward), callRecord);
    } catch (failure) {
      reportFailure(call, callRecord, failure);
      throw failure;
    }
  };

  /** Names the caller. @throws Refusal `unauthenticated`, `request_invalid` */
  identify(call: Call, { credentialFields }: Runtime = this.#parts.runtime()): Caller {
    const caller = authenticate(call.rawFields, this.#parts.keyring, credentialFields, call.rawUrl);
    call.authenticated();
    return caller;
  }

  /** Who calls, where to, with what. Apart from the rest: what only this needs is let go while the call is held. */
  async #prepare(call: Call, callRecord: CallRecord): Promise<Prepared> {
    const run = this.#parts.runtime();
    const caller = this.identify(call, run);
    callRecord.workspaceId = caller.workspace.id;
    const route = run.egress.routes.find(call, caller);
    callRecord.routed(route.upstream);
    const read = call.readBody(caller.workspace.id);
    const body = read instanceof Promise ? await read : read;
    const prepared = prepare({ call, caller, route, body, run, callRecord }, this.#parts);
    const { admission, reserving } = prepared.request;
    callRecord.admitting(admission.costs, reserving !== undefined);
    return prepared;
  }

  /** From the lane to the response. Ends when `audience` is gone: no client waits for the response any more. */
  readonly #forward: Forward = async (prepared, audience) => {
    const progress: Progress = { attempts: 0, absorbed: 0, history: neverSent, refusedAt: null };
    const checks = new SendChecks(this.#parts, prepared);
    const isObserved = prepared.request.mode === 'observe';
    let ticket: Ticket | null = null;
    try {
      checks.mayEnter();
      ticket = await this.#parts.admission.enter(prepared.request, audience.signal);
      for (;;) {
        prepared.callRecord.queued();
        const lease = await ticket.whenGranted();
        const permission = await checks.permit(lease, ticket);
        if (permission === null) continue;
        progress.attempts += 1;
        audience.moved?.('upstream');
        const traceparent = prepared.callRecord.sent();
        const { lane } = lease.grant;
        const attempt: Attempt = { prepared, ...permission, traceparent, lane, signal: audience.signal };
        const result = await this.#attempts.send(attempt);
        // A call nobody waits for any more has no wait left: it is not sent again, and its lane does not sleep for it.
        const remainingMs = audience.signal.aborted ? 0 : ticket.remainingMs();
        const learned = checks.learn(result);
        const isCredentialRenewed = typeof learned === 'boolean' ? learned : await learned;
        const decision = this.#attempts.judge(prepared, result, {
          ...progress,
          remainingMs,
          isCredentialRenewed,
          isObserved,
        });
        if (decision.kind === 'pass') {
          const would = isObserved ? await ticket.would() : null;
          return this.#attempts.passOn(attempt, result, decision, recordOf(progress, ticket, would));
        }
        progress.history = decision.history;
        // The first of them: a refusal comes faster than the response to a call that was sent at the same time.
        if (decision.cause === 'hintless') progress.refusedAt ??= this.#parts.clock.monotonic();
        if (this.#attempts.sendAgain(attempt, result, decision)) progress.absorbed += 1;
        audience.moved?.('lane');
      }
    } catch (thrown) {
      const reason = checks.reasonOf(thrown);
      const isReserving = prepared.request.reserving !== undefined && !audience.signal.aborted;
      const failure = isReserving ? await this.#parts.admission.reserve(prepared.request, reason) : reason;
      prepared.callRecord.held = ticket?.held() ?? [];
      // A refusal names how much of the ceiling is left. Nobody reads it when every client is gone.
      if (!audience.signal.aborted) {
        const { ceilings, admission } = this.#parts;
        const would = (await ticket?.would()) ?? null;
        prepared.callRecord.would = would;
        // A ceiling that holds nothing is not told to clients, who would hold themselves.
        const left = isObserved ? null : await ceilings.state(admission.ceilingOf(prepared.request));
        prepared.call.report({ record: recordOf(progress, ticket, would), rateLimit: left });
      }
      throw failure;
    } finally {
      checks.end();
      ticket?.leave();
    }
  };
}

function recordOf(
  { attempts, absorbed }: Progress,
  ticket: Ticket | null,
  would: Reckoned | null,
): AdmissionRecord {
  const held = ticket?.held() ?? [];
  const record = { waitedMs: ticket?.waitedMs() ?? 0, attempts, absorbed, held };
  return would === null ? record : { ...record, would };
}
