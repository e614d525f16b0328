/**
 * READ FIRST of this folder. Takes calls into their lanes, waits with them, and hands them a lease when both the bucket
 * and the ceiling agree:
 *
 *   enter ─ limiter.admit ─┬─ granted ──▶ CeilingGate.pass ─ slot taken, caller waits ──▶ lease
 *                          ├─ queued ───▶ NewcomerCheck ──▶ ticket … onGrant ──▶ CeilingGate.pass
 *                          └─ refused ──▶ NewcomerCheck ──▶ Refusal
 *
 * Owns: how a call enters, and the parts: the calls and their states (`wait-registry.ts`, `queued-call.ts`), the ceiling
 * between grant and lease (`ceiling-gate.ts`), refusals of those who wait (`early-rejection.ts`).
 * Does not own: which call is next (the limiter), resending (the journey), sockets.
 */
import type { CeilingKey } from '../ids.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { Ceilings } from '../limiter/ceilings.ts';
import { defaultLeaseMs, type Admission, type Limiter, type LimiterListener } from '../limiter/limiter.ts';
import { ArrivalOrder } from './arrival-order.ts';
import type { CallSettings } from './buckets.policy.ts';
import { CeilingEdge } from './ceiling-edge.ts';
import { CeilingGate } from './ceiling-gate.ts';
import { EarlyRejection } from './early-rejection.ts';
import { refused } from './ending.ts';
import { LaneRotation } from './lane-rotation.ts';
import { applyLimits, Lanes } from './lanes.ts';
import { NewcomerCheck } from './newcomer-check.ts';
import type { AdmissionParts } from './parts.ts';
import { reconfigure } from './reconfigure.ts';
import { QueuedTicket } from './queued-ticket.ts';
import type { AdmissionRequest, Ticket } from './ticket.ts';
import { WaitRegistry } from './wait-registry.ts';

export interface AdmissionQueueParts {
  readonly clock: Clock;
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  /** Hears of failures of the store's background operations. */
  readonly onFailure: (failure: unknown) => void;
  /** Where a call belongs since its bucket was joined into another one; left out: no bucket ever is. */
  readonly homeOf?: AdmissionParts['homeOf'];
  /** Replaces the life of a lease. */
  readonly leaseMs?: number;
}

const staysWhereItIs = (): null => null;

export class AdmissionQueue {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #rejection: EarlyRejection;
  readonly #newcomers: NewcomerCheck;
  readonly #gate: CeilingGate;
  readonly #arrivals = new ArrivalOrder();

  /** What the limiter reports without being asked. */
  readonly listener: LimiterListener = {
    onGrant: (grant) => this.#gate.onGrant(grant),
    onClosed: (bucket, closedMs) => this.#rejection.onStandstill(bucket, null, closedMs),
  };

  constructor({ clock, limiter, ceilings, onFailure, ...more }: AdmissionQueueParts) {
    const { leaseMs = defaultLeaseMs, homeOf = staysWhereItIs } = more;
    const background = (work: Promise<unknown>): void => void work.catch(onFailure);
    const parts: AdmissionParts = { clock, limiter, ceilings, leaseMs, homeOf, background };
    const registry = new WaitRegistry(parts, new Lanes(clock));
    const rotation = new LaneRotation(clock, registry);
    const edge = new CeilingEdge(parts, rotation);
    this.#parts = parts;
    this.#registry = registry;
    this.#rejection = new EarlyRejection(parts, registry, rotation);
    this.#newcomers = new NewcomerCheck(parts, rotation, this.#rejection);
    this.#gate = new CeilingGate(parts, { registry, rotation, edge, rejection: this.#rejection });
  }

  /** Enters a call into its lane, or refuses the call at once. The abort of `clientGone` ends the call at any time. */
  async enter(request: AdmissionRequest, clientGone: CallSignal): Promise<Ticket> {
    const call = this.#registry.enter(request, clientGone);
    try {
      const { clock } = this.#parts;
      applyLimits(call.lane, request.admission.ceiling);
      const askedAt = clock.monotonic();
      const reply = await this.#parts.limiter.admit(this.#admissionOf(request));
      if (reply.kind === 'granted') {
        call.onGrantedAtOnce(clock.monotonic() - askedAt, clock.monotonic());
        this.#gate.pass(call, reply.grant);
      } else {
        const refusal = await this.#newcomers.refusalOf(call, reply, askedAt);
        if (refusal !== null) throw refusal;
      }
    } catch (failure) {
      this.#registry.end(call, { kind: 'left' });
      throw failure;
    }
    return new QueuedTicket(call, this.#registry, this.#parts.clock);
  }

  /** Refuses waiting calls whose key is not valid any more. */
  recheckKeys(): void {
    for (const call of this.#registry.all()) {
      if (!call.isWaiting || call.request.stillValid()) continue;
      this.#registry.end(call, refused(new Refusal('unauthenticated')));
    }
  }

  /** Refuses waiting calls for which `refusalOf` has a reason. */
  refuseWaiting(refusalOf: (request: AdmissionRequest) => Refusal | null): void {
    for (const call of this.#registry.all()) {
      const refusal = call.isWaiting ? refusalOf(call.request) : null;
      if (refusal !== null) this.#registry.end(call, refused(refusal));
    }
  }

  /**
   * Configuration changed: every call that is in admission goes on at once under the settings that `settingsOf` returns for
   * it (`null` = unchanged). A call that the change makes too late is refused, with the new time.
   */
  reconfigure(settingsOf: (request: AdmissionRequest) => CallSettings | null): void {
    const changed = reconfigure(this.#parts, this.#registry.all(), settingsOf);
    this.#rejection.onReconfigured(changed);
  }

  /** Buckets were joined: the calls that wait in them go on where they belong now, in their order. */
  followJoined(): void {
    for (const call of this.#registry.all()) this.#registry.follow(call);
  }

  /** Refuses (`draining`) waiting calls that are not expected to leave within `budgetMs`. */
  drain(budgetMs: number): void {
    this.#rejection.onDrain(budgetMs);
  }

  /** Calls that wait in this process now under one ceiling. */
  waitingUnder(key: CeilingKey): number {
    return this.#registry.waitingUnder(key);
  }

  /**
   * The request to the limiter. `maxQueued` bounds the workspace's waiting calls in all lanes under its ceiling, and the limiter
   * sees one lane only: where the bound is reached, the limiter gets 0 and queues no call.
   */
  #admissionOf({ admission, ceiling, maxWaitMs, arrivedAt }: AdmissionRequest): Admission {
    const isFull = this.#registry.waitingUnder(ceiling.key) >= admission.maxQueued;
    return {
      ...admission,
      maxQueued: isFull ? 0 : admission.maxQueued,
      maxWaitMs,
      leaseMs: this.#parts.leaseMs,
      position: { kind: 'arrival', at: this.#arrivals.next(arrivedAt) },
    };
  }
}
