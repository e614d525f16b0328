/**
 * What beside limits decides whether a call may be sent: the breakers of what it concerns, an operator's pause of its upstream, its
 * credential, whether its workspace may still call its upstream, and whether its grant still holds. The first three are asked before the
 * call enters its lane, and all with each grant.
 *
 * Keeps: a grant under which the call may not be sent goes back, and its lane sleeps meanwhile; a probe is kept over resends, because the
 * open breaker waits for the response of this call, and must not refuse it; a call uses the quota for which it waited: where a reload has
 * named a credential of another quota, the call keeps the one that it entered with; nobody is sent with one that is known to have ended.
 */
import type { Lease, Ticket } from '../admission/ticket.ts';
import { observationOf, type BreakerId } from '../breaker/breakers.ts';
import type { InjectedField } from '../call.ts';
import type { CredentialUse } from '../credentials/credentials.ts';
import type { AttemptResult } from '../dispatch/dispatcher.ts';
import { credentialFaultWords, Refusal, type CredentialFault } from '../errors.ts';
import type { FlowParts, Prepared } from './prepare.ts';

/** Permission to send now, and the credential to send with; `null` = the client brings its own. */
export interface Permission {
  readonly lease: Lease;
  readonly credential: InjectedField | null;
}

/** While an upstream is paused, each lane with waiting calls is granted one this often; while a credential is awaited, in such a time. Milliseconds. */
const askAgainMs = { paused: 1_000, credential: { min: 20, max: 500 } };

const notProbing: readonly BreakerId[] = [];

export class SendChecks {
  readonly #parts: FlowParts;
  readonly #call: Pick<Prepared, 'caller' | 'request' | 'route'>;
  /** The breakers for which the call finds out. */
  #probed = notProbing;
  /** The injected credential that the last sending carried. */
  #sent: (CredentialUse & { readonly version: number }) | null = null;
  /** Why there is no credential; `undefined` = there is one. */
  #missing: CredentialFault | null | undefined = undefined;

  constructor(parts: FlowParts, call: Pick<Prepared, 'caller' | 'request' | 'route'>) {
    this.#parts = parts;
    this.#call = call;
  }

  /** Before the call enters its lane. @throws Refusal where it cannot be sent within its wait */
  mayEnter(): void {
    const { breakers, controls } = this.#parts;
    const { subject, maxWaitMs } = this.#call.request;
    const refusal = breakers.openBreakerRefusal(subject);
    if (refusal !== null) throw refusal;
    this.#credential(maxWaitMs);
    const pausedMs = controls.pausedMs(subject.upstream);
    if (pausedMs > maxWaitMs) throw pausedTooLong('wait_too_long', pausedMs);
  }

  /**
   * The call has been granted. `null` = it may not be sent now: its grant has gone back, and there will be another one.
   * @throws Refusal where there will be none
   */
  async permit(lease: Lease, ticket: Ticket): Promise<Permission | null> {
    const { breakers, controls, telemetry } = this.#parts;
    const { subject } = this.#call.request;
    const later = (cause: 'credential' | 'paused', sleepMs: number): null => {
      ticket.heldOutside(cause, sleepMs);
      lease.settle({ kind: 'returned', sleepMs, because: 'backoff' }, null);
      return null;
    };
    try {
      this.#requireAccess();
      const remainingMs = ticket.remainingMs();
      const credential = this.#credential(remainingMs);
      if ('awaitedMs' in credential) return later('credential', credential.awaitedMs);
      const pausedMs = controls.pausedMs(subject.upstream);
      if (pausedMs > remainingMs && pausedMs > 0) throw pausedTooLong('wait_expired', pausedMs);
      if (pausedMs > 0) return later('paused', Math.min(pausedMs, askAgainMs.paused));
      if (this.#probed.length === 0 && breakers.isAnyOpen) this.#probed = await breakers.pass(subject);
      if (lease.holds()) return { lease, credential: credential.field };
    } catch (refusal) {
      lease.settle({ kind: 'dropped' }, null);
      throw refusal;
    }
    telemetry.count('sluice_leases_lost_total', { reason: 'stalled' });
    // Another replica may hold the lane by now.
    lease.settle({ kind: 'returned', sleepMs: 0, because: 'backoff' }, null);
    return null;
  }

  /**
   * Tells breakers and credentials what an attempt shows. True, or resolves with true, where the credential of the call has ended, and
   * another one is there or on its way.
   */
  learn(result: AttemptResult): boolean | Promise<boolean> {
    const observation = observationOf(result);
    // A probe lasts until an attempt of its call shows whether the upstream still refuses.
    if (observation.kind !== 'silent') {
      this.#parts.breakers.observe(this.#call.request.subject, this.#probed, observation);
      this.#probed = notProbing;
    }
    if (result.kind === 'failed' || this.#sent === null) return false;
    const isRefused = result.feedback.refusesCredential === true;
    return isRefused && this.#parts.credentials.refused(this.#sent, this.#sent.version);
  }

  /** The true reason of a call's failure: its wait may have run out while it had no credential. */
  reasonOf(failure: unknown): unknown {
    const ranOut =
      failure instanceof Refusal && (failure.code === 'wait_expired' || failure.code === 'wait_too_long');
    return ranOut && this.#missing !== undefined ? unavailable(this.#missing) : failure;
  }

  /** The call has ended: a probe that has shown nothing is given up. */
  end(): void {
    if (this.#probed.length > 0)
      this.#parts.breakers.observe(this.#call.request.subject, this.#probed, { kind: 'silent' });
  }

  /** @throws Refusal where a reload has removed the upstream, or has taken it from the workspace, while the call waited */
  #requireAccess(): void {
    const { caller, route } = this.#call;
    const { upstreams, workspaces } = this.#parts.runtime().settings;
    const { name } = route.upstream;
    if (upstreams.has(name) && workspaces.get(caller.workspace.id)?.upstreams.has(name) !== false) return;
    const detail =
      'While the call waited, the operator removed this upstream, or took it from the workspace.';
    throw new Refusal('target_forbidden', { detail, param: 'target' });
  }

  /**
   * The field with which the call would be sent now, of the credential that is configured now, where that still stands for the quota that
   * the call waited for; `null` = its client brings its own.
   * @param remainingMs what is left of the call's wait
   * @throws Refusal `credential_unavailable` when no credential is expected within `remainingMs`
   */
  #credential(
    remainingMs: number,
  ): { readonly field: InjectedField | null } | { readonly awaitedMs: number } {
    const { caller, route } = this.#call;
    if (route.credential === null) return { field: null };
    const { upstreams, workspaces } = this.#parts.runtime().settings;
    const upstream = upstreams.get(route.upstream.name) ?? route.upstream;
    const own = workspaces.get(caller.workspace.id)?.credentials.get(upstream.name);
    const configured = own ?? upstream.credential;
    const credential = configured?.quota === route.credential.quota ? configured : route.credential;
    const state = this.#parts.credentials.now({ credential, upstream });
    if (state.kind === 'unavailable') {
      this.#missing = state.fault;
      if (isFinal(state.fault) || state.retryInMs > remainingMs) throw unavailable(state.fault);
      const { min, max } = askAgainMs.credential;
      return { awaitedMs: Math.min(Math.max(min, state.retryInMs), max) };
    }
    this.#missing = undefined;
    this.#sent = { credential, upstream, version: state.version };
    return { field: { field: credential.field, value: state.value } };
  }
}

/** True for a fault that does not pass by waiting. */
const isFinal = (fault: CredentialFault | null): boolean => fault === 'refused' || fault === 'grant_ended';

const unavailable = (fault: CredentialFault | null): Refusal =>
  new Refusal('credential_unavailable', {
    detail: `The credential for this upstream is not available: ${credentialFaultWords[fault ?? 'timeout']}. Nothing was sent.`,
    ...(isFinal(fault) ? { shouldRetry: false } : {}),
  });

const pausedTooLong = (code: 'wait_too_long' | 'wait_expired', retryInMs: number): Refusal =>
  new Refusal(code, {
    heldBy: 'paused',
    retryInMs,
    detail:
      'An operator has paused this upstream for longer than the call may wait: come back after Retry-After.',
  });
