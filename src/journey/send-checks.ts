/**
 * What beside limits decides whether a call may be sent: the breakers of what it concerns, an operator's pause of its upstream, its
 * credential, and whether its grant still holds. The first three are asked before the call enters its lane, and all with each grant.
 *
 * Keeps: a grant under which the call may not be sent goes back, and its lane sleeps meanwhile; a probe is kept over resends,
 * because the open breaker waits for the response of this call, and must not refuse it.
 */
import type { AdmissionRequest, Lease, Ticket } from '../admission/ticket.ts';
import type { Breakers, Probe } from '../breaker/breakers.ts';
import { observationOf } from '../breaker/breaker.policy.ts';
import type { InjectedField } from '../call.ts';
import type { Settings } from '../config/settings.ts';
import type { Credentials } from '../credentials/credentials.ts';
import type { AttemptResult } from '../dispatch/dispatcher.ts';
import { Refusal } from '../errors.ts';
import type { BucketKey } from '../ids.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { CallCredential } from './call-credential.ts';
import { returnGrant } from './lease-end.ts';
import type { Prepared } from './prepare.ts';

/** What holds calls to an upstream back before they are sent: an operator's pause. */
export interface Pauses {
  /** Nothing is paused, and no bucket has to be opened. */
  readonly isQuiet: boolean;
  /** A call goes to this bucket. Resolves when it is open, if somebody asked for that before the bucket was known here. */
  used(upstream: string, bucket: BucketKey): Promise<void>;
  /** How long nobody may be sent to the upstream, milliseconds; 0 = it is not paused. */
  pausedMs(upstream: string): number;
}

export interface SendChecksParts {
  readonly breakers: Breakers;
  readonly credentials: Credentials;
  readonly pauses: Pauses;
  readonly telemetry: Pick<Telemetry, 'leaseLost'>;
  /** Those in use: a waiting call is sent with the value that is configured when it leaves. */
  readonly settings: () => Settings;
}

/** Permission to send now, and the credential to send with; `null` = the client brings its own. */
export interface Permission {
  readonly lease: Lease;
  readonly credential: InjectedField | null;
}

const broughtByClient = { kind: 'ready', field: null } as const;

/** While an upstream is paused, each lane with waiting calls is granted one this often. Milliseconds. */
const askAgainMs = 1_000;

export class SendChecks {
  readonly #parts: SendChecksParts;
  readonly #request: AdmissionRequest;
  /** `null`: the client brings its own. */
  readonly #credential: CallCredential | null;
  #probe: Probe | null = null;

  constructor(parts: SendChecksParts, prepared: Prepared) {
    this.#parts = parts;
    this.#request = prepared.request;
    const { credential } = prepared.route;
    this.#credential = credential === null ? null : new CallCredential(parts, prepared, credential);
  }

  /** Before the call enters its lane. @throws Refusal where it cannot be sent within its wait */
  async mayEnter(): Promise<void> {
    const { breakers, pauses } = this.#parts;
    const { subject, admission, maxWaitMs } = this.#request;
    const refusal = breakers.openBreakerRefusal(subject);
    if (refusal !== null) throw refusal;
    this.#credential?.ready(maxWaitMs);
    if (pauses.isQuiet) return;
    await pauses.used(subject.upstream, admission.bucket);
    const pausedMs = pauses.pausedMs(subject.upstream);
    if (pausedMs > maxWaitMs) throw pausedTooLong('wait_too_long', pausedMs);
  }

  /**
   * The call has been granted. `null` = it may not be sent now: its grant has gone back, and there will be another one.
   * @throws Refusal where there will be none
   */
  async permit(lease: Lease, ticket: Ticket): Promise<Permission | null> {
    const { breakers, telemetry } = this.#parts;
    try {
      const readiness = this.#credential?.ready(ticket.remainingMs()) ?? broughtByClient;
      if (readiness.kind === 'pause') {
        ticket.heldOutside('credential', readiness.sleepMs);
        return returned(lease, readiness.sleepMs);
      }
      const pausedMs = this.#pausedMs(ticket);
      if (pausedMs > 0) {
        const sleepMs = Math.min(pausedMs, askAgainMs);
        ticket.heldOutside('paused', sleepMs);
        return returned(lease, sleepMs);
      }
      if (this.#probe === null && !breakers.areClosed)
        this.#probe = await breakers.pass(this.#request.subject);
      if (lease.holds()) return { lease, credential: readiness.field };
    } catch (refusal) {
      lease.settle({ kind: 'dropped' }, null);
      throw refusal;
    }
    telemetry.leaseLost('stalled');
    return returned(lease, 0);
  }

  /**
   * Tells breakers and credentials what an attempt shows. Resolves with true where the credential of the call has ended, and another
   * one is there or on its way.
   */
  async learn(result: AttemptResult): Promise<boolean> {
    // A probe lasts until an attempt of its call shows whether the upstream still refuses.
    if (observationOf(result).kind !== 'silent') this.#observe(result);
    if (result.kind !== 'answered' || this.#credential === null) return false;
    return this.#credential.isRenewedAfter(result.feedback);
  }

  /** The true reason of a call's failure. */
  reasonOf(failure: unknown): unknown {
    return this.#credential === null ? failure : this.#credential.reasonOf(failure);
  }

  /** The call has ended: a probe that has shown nothing is given up. */
  end(): void {
    if (this.#probe !== null) this.#observe(null);
  }

  #observe(result: AttemptResult | null): void {
    const { breakers } = this.#parts;
    const [probe, observation] = [this.#probe, observationOf(result)];
    this.#probe = null;
    if (probe === null && observation.kind !== 'refused' && !breakers.awaitSuccess) return;
    breakers.observe(this.#request.subject, probe, observation);
  }

  /** What is left of the upstream's pause, milliseconds. @throws Refusal where less is left of the call's wait */
  #pausedMs(ticket: Ticket): number {
    const pausedMs = this.#parts.pauses.pausedMs(this.#request.subject.upstream);
    if (pausedMs > 0 && pausedMs > ticket.remainingMs()) throw pausedTooLong('wait_expired', pausedMs);
    return pausedMs;
  }
}

function returned(lease: Lease, sleepMs: number): null {
  returnGrant(lease, sleepMs);
  return null;
}

const pausedTooLong = (code: 'wait_too_long' | 'wait_expired', retryInMs: number): Refusal =>
  new Refusal(code, {
    heldBy: 'paused',
    retryInMs,
    detail:
      'An operator has paused this upstream for longer than the call may wait: come back after Retry-After.',
  });
