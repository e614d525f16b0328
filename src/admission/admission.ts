/**
 * READ FIRST of this folder. Enters calls into their lanes, keeps them while they wait, and gives each a lease when its
 * bucket has granted it and its ceiling has a slot:
 *
 *   enter ─ limiter.admit ─┬─ granted ──▶ CeilingGate.pass ─ slot taken, caller waits ──▶ lease
 *                          ├─ queued ───▶ LateRefusals.refusalOf ──▶ ticket … onGrant ──▶ CeilingGate.pass
 *                          └─ refused ──▶ LateRefusals.refusalOf ──▶ Refusal
 *
 * Owns: how a call enters, and the parts: the calls and their states (`queued-call.ts`), the ceiling
 * between grant and lease (`ceiling-gate.ts`), refusals of those who wait (`late-refusals.ts`).
 * Does not own: which call is next (the limiter), resending (the journey), sockets.
 */
import { isDeepStrictEqual } from 'node:util';
import { keyEnded, Refusal } from '../errors.ts';
import type { BucketKey, CeilingKey, TicketId } from '../ids.ts';
import type { CeilingRef } from '../limiter/policy/ceiling.policy.ts';
import { type Admission, defaultLeaseMs, type LimiterListener, type Reserved } from '../limiter/limiter.ts';
import type { CallSettings } from './buckets.policy.ts';
import { CeilingGate, type SlotReply } from './ceiling-gate.ts';
import { inSlices } from '../slices.ts';
import { present, type QueuedCall, WaitRegistry, withSettings } from './queued-call.ts';
import { LateRefusals } from './late-refusals.ts';
import type { LaneView } from './lanes.ts';
import { ObservedBuckets, ObservedCall, type ObservedParts } from './observed-call.ts';
import { reserved } from './refusals.ts';
import type { AdmissionParts, AdmissionRequest, Ticket } from './ticket.ts';

/** What the queue is built of: what its own parts share follows from it. */
export interface AdmissionQueueParts
  extends
    Pick<AdmissionParts, 'clock' | 'limiter' | 'ceilings'>,
    Partial<Pick<AdmissionParts, 'joinedBucketOf' | 'onReckoned' | 'leaseMs'>> {
  /** Called with each failure of a store's operation that no call waits for. */
  readonly onFailure: (failure: unknown) => void;
}

/** The call would have been sent, if it could have waited for longer. */
const isForWait = ({ code }: Refusal): boolean => code === 'wait_too_long' || code === 'wait_expired';

/** More calls than so many are sent without a ticket while limits do not hold them: what is reckoned is bounded, as what waits is. */
const maxReckoned = 20_000;

/** The settings of a request; `null` = it keeps those that it has. */
type SettingsOf = (request: AdmissionRequest) => CallSettings | null;

const always = (): boolean => true;
/** The client of a ticket whose call may have left already. */
const nobody = new AbortController().signal;

export class AdmissionQueue {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #lateRefusals: LateRefusals;
  readonly #observed: ObservedParts;
  readonly #gate: CeilingGate;
  readonly #arrivals = new ArrivalOrder();
  /** Of the latest reload; `null` = there was none. */
  #latest: SettingsOf | null = null;

  /** What the limiter reports without being asked. */
  readonly listener: LimiterListener = {
    onGrant: (grant) => this.#gate.onGrant(grant),
    onClosed: (bucket, closedMs) => {
      this.#registry.causes.onClosed(bucket);
      this.#lateRefusals.onStandstill(bucket, null, closedMs);
    },
  };

  constructor({ onFailure, ...given }: AdmissionQueueParts) {
    const parts: AdmissionParts = {
      leaseMs: defaultLeaseMs,
      joinedBucketOf: () => null,
      onReckoned() {},
      ...given,
      detached: (work) => void work.catch(onFailure),
    };
    this.#parts = parts;
    const registry = new WaitRegistry(parts, () => lateRefusals.onHeld());
    const lateRefusals = new LateRefusals(parts, registry);
    this.#registry = registry;
    this.#lateRefusals = lateRefusals;
    this.#observed = { ...parts, registry, buckets: new ObservedBuckets() };
    const onAnswer = (bucket: BucketKey): void => this.#yieldIn(bucket);
    this.#gate = new CeilingGate({ ...parts, registry, lateRefusals, onAnswer });
    parts.ceilings.listen((key) => registry.onSlotBack(key));
  }

  /**
   * Enters a call into its lane, or refuses the call at once. The abort of `clientGone` ends the call at any time. A call that is
   * only observed is never refused, and may be sent at once.
   */
  enter(asked: AdmissionRequest, clientGone: AbortSignal): Promise<Ticket> {
    const request = present(asked, this.#parts.limiter);
    if (request.mode === 'enforce') return this.#enterLane(this.#registry.enter(request, clientGone));
    const { stillValid } = request;
    const call = this.#registry.enter({ ...request, stillValid: always }, nobody);
    const observed = new ObservedCall(call, { audience: clientGone, stillValid }, this.#observed);
    if (this.#registry.calls.size > maxReckoned) observed.stop();
    else this.#parts.detached(observed.follow(this.#enterLane(call)));
    return Promise.resolve(observed);
  }

  /** The ceiling that holds for such a call now: none where a default one has yielded to what its bucket states. */
  ceilingOf(asked: AdmissionRequest): CeilingRef {
    return present(asked, this.#parts.limiter).ceiling;
  }

  /** @throws Refusal where the call cannot leave within its wait */
  async #enterLane(call: QueuedCall): Promise<QueuedCall> {
    const { request } = call;
    const { clock, limiter, detached } = this.#parts;
    let askedAhead: Promise<SlotReply> | null = null;
    try {
      const askedAt = clock.monotonic();
      askedAhead = this.#gate.askAhead(call);
      const reply = await limiter.admit(this.#admissionOf(request));
      if (reply.kind === 'granted') {
        const now = clock.monotonic();
        call.onGrantedAtOnce(now - askedAt, now);
        this.#gate.pass(call, reply.grant, askedAhead);
        return call;
      }
      const ahead = askedAhead;
      askedAhead = null;
      // Before the ceiling forecasts the call's slot: that forecast must not count this one.
      if (ahead !== null) await this.#gate.giveBack(ahead);
      const refusal = await this.#lateRefusals.refusalOf(call, reply, askedAt);
      if (refusal !== null) throw refusal;
      return call;
    } catch (failure) {
      if (askedAhead !== null) detached(this.#gate.giveBack(askedAhead));
      this.#registry.end(call, failure);
      throw failure;
    }
  }

  /**
   * The refusal of a call that keeps its position, where its client asked for that: with the time at which it can leave, and what it brings
   * then. Any other failure as it is.
   */
  async reserve(asked: AdmissionRequest, failure: unknown): Promise<unknown> {
    const { reserving } = asked;
    if (reserving === undefined || !(failure instanceof Refusal) || !isForWait(failure)) return failure;
    const request = present(asked, this.#parts.limiter);
    const { ceiling } = request;
    const { limiter, ceilings } = this.#parts;
    const { ticketOf, ...terms } = reserving;
    const keep = (waitMs: number, id: TicketId | undefined): Promise<Reserved | null> => {
      const admission = this.#admissionOf(request);
      const named = id === undefined ? admission : { ...admission, reservation: id };
      return limiter.reserve(named, { ...terms, ceiling: ceiling.key, waitMs });
    };
    const kept = await keep(failure.details.retryInMs ?? 0, request.admission.reservation);
    if (kept === null) return failure;
    // The refusal knew nothing of calls that were refused with it: behind them the ceiling may have a slot later.
    const lane = this.#registry.laneOf(request);
    const position = this.#registry.turns(lane)(lane, kept.ahead);
    const [hold] = await ceilings.forecast(ceiling, [position]);
    const isLater = hold !== undefined && hold.waitMs > kept.waitMs;
    const last = isLater ? await keep(hold.waitMs, kept.id) : kept;
    if (last === null) return failure;
    return reserved(failure.code, isLater ? { ...hold, waitMs: last.waitMs } : last, ticketOf(kept.id));
  }

  /** Refuses waiting calls whose key is not valid any more. */
  recheckKeys(): void {
    this.refuseWaiting(({ stillValid }) => (stillValid() ? null : keyEnded()));
  }

  /** Refuses each waiting call for which `judge` returns a refusal. */
  refuseWaiting(judge: (request: AdmissionRequest) => Refusal | null): void {
    for (const call of this.#registry.calls.values()) {
      const refusal = call.isWaiting ? judge(call.request) : null;
      if (refusal !== null) this.#registry.end(call, refusal);
    }
  }

  /**
   * Configuration changed: every call that is in admission goes on at once under the settings that `settingsOf` returns for
   * it (`null` = unchanged). A call that the change makes too late is refused, with the new time. Calls that limits hold since this change are
   * not held behind those that were sent without.
   */
  reload(reloaded: SettingsOf): void {
    const { limiter, clock, detached } = this.#parts;
    const settingsOf: SettingsOf = (request) => {
      const settings = reloaded(request);
      const yielded = settings?.yielded ?? null;
      return yielded !== null && limiter.statesLimit(request.admission.bucket) ? yielded : settings;
    };
    this.#latest = settingsOf;
    for (const { observer, request } of this.#registry.calls.values())
      if (observer !== null && settingsOf(request)?.mode === 'enforce') observer.stop();
    const changed = reconfigure(this.#parts, this.#registry.calls.values(), settingsOf);
    // The last call of a lane without calls may have brought the former settings to a bucket where calls of other replicas wait.
    const follow = (lane: LaneView): void => {
      if (this.#latest !== settingsOf || lane.calls > 0) return;
      const settings = settingsOf(lane.latest);
      if (settings === null || isSame(lane.latest, settings)) return;
      lane.latest = withSettings(lane.latest, settings);
      report(this.#parts, [lane.latest]);
    };
    detached(inSlices(clock, [...this.#registry.lanes()], follow));
    this.#lateRefusals.onReconfigured(changed);
  }

  /** A response may have stated a limit of the bucket: default ceilings hold none of its calls any more then. */
  #yieldIn(bucket: BucketKey): void {
    const { limiter } = this.#parts;
    if (!limiter.statesLimit(bucket)) return;
    const yielding = [...this.#registry.lanes()].filter(
      (lane) => lane.bucket === bucket && lane.latest.yielded !== null,
    );
    if (yielding.length === 0) return;
    for (const lane of yielding) lane.latest = present(lane.latest, limiter);
    reconfigure(this.#parts, this.#registry.calls.values(), ({ admission, yielded }) =>
      admission.bucket === bucket ? yielded : null,
    );
  }

  /** Buckets were joined into others: moves each waiting call of theirs to the bucket it belongs to now, in order. */
  moveToJoinedBuckets(): void {
    for (const call of this.#registry.calls.values()) this.#registry.moveToJoinedBucket(call);
  }

  /** Refuses (`draining`) waiting calls that are not expected to leave within `budgetMs`. */
  drain(budgetMs: number): void {
    this.#lateRefusals.onDrain(budgetMs);
  }

  /** Ends what is reckoned of calls that limits do not hold: their tickets outlive them. */
  close(): void {
    for (const { observer } of this.#registry.calls.values()) observer?.stop();
  }

  /** Calls that wait in this process now under one ceiling. */
  waitingUnder(key: CeilingKey): number {
    return this.#registry.waitingUnder(key);
  }

  /** The lanes that calls of this process have used lately, each with its bucket, upstream and ceiling. */
  lanes(): Iterable<LaneView> {
    return this.#registry.lanes();
  }

  /**
   * The request to the limiter. `maxQueued` bounds the workspace's waiting calls in all lanes under its ceiling, and the limiter
   * sees one lane only: where the bound is reached, the limiter gets 0 and queues no call.
   */
  #admissionOf({ admission, ceiling, maxWaitMs, arrivedAt }: AdmissionRequest): Admission {
    const isFull = this.#registry.waitingUnder(ceiling.key, admission.lane) >= admission.maxQueued;
    return {
      ...admission,
      maxQueued: isFull ? 0 : admission.maxQueued,
      maxWaitMs,
      position: { kind: 'arrival', at: this.#arrivals.next(arrivedAt) },
    };
  }
}

// Arrivals

// Calls whose bodies were complete within one step of the clock may have the same arrival; they get increasing arrivals in the order in which
// they enter admission. An exception is a call that enters late because its body took long: its arrival lies before that of a call already
// in admission, and stays as it is.

/** Between two arrivals; more than the smallest difference between two positions (`sequencePerMs`). Milliseconds. */
const stepMs = 0.02;

export class ArrivalOrder {
  #latest = -Infinity;
  #given = -Infinity;

  /** The arrival with which a call that was received at `at` is admitted; both in monotonic milliseconds. */
  next(at: number): number {
    if (at < this.#latest) return at;
    this.#latest = at;
    this.#given = Math.max(at, this.#given + stepMs);
    return this.#given;
  }
}

/** Puts calls under the settings that `settingsOf` has for them (`null` = unchanged). Returns those whose settings changed. */
function reconfigure(
  parts: AdmissionParts,
  calls: Iterable<QueuedCall>,
  settingsOf: SettingsOf,
): readonly QueuedCall[] {
  const changed: QueuedCall[] = [];
  for (const call of calls) {
    const settings = settingsOf(call.request);
    if (settings === null || isSame(call.request, settings)) continue;
    call.request = withSettings(call.request, settings);
    call.lane.latest = call.request;
    changed.push(call);
  }
  const requests = changed.map(({ request }) => request);
  report(parts, requests);
  return changed;
}

/** Tells the limiter the settings of these requests. */
function report({ limiter, detached }: AdmissionParts, requests: readonly AdmissionRequest[]): void {
  const admissions = requests.map(({ admission }) => admission);
  for (const [bucket, own] of Map.groupBy(admissions, (one) => one.bucket)) {
    const lanes = new Map(
      own.map(({ lane, weight, maxInFlight, perMinute, ceilingTag }) => [
        lane,
        { lane, weight, maxInFlight, perMinute, ceilingTag },
      ]),
    );
    for (const { setting } of own.slice(0, 1))
      detached(limiter.reconfigure({ bucket, setting, lanes: [...lanes.values()] }));
  }
}

const isSame = ({ admission }: AdmissionRequest, settings: CallSettings): boolean =>
  admission.weight === settings.weight &&
  admission.maxInFlight === settings.maxInFlight &&
  admission.ceilingTag === settings.ceilingTag &&
  admission.maxQueued === settings.maxQueued &&
  (admission.setting === settings.setting || isDeepStrictEqual(admission.setting, settings.setting));
