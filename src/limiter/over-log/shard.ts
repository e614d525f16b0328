/**
 * The limiter of one log: this replica's calls in the buckets of one upstream credential.
 *
 *   admit ─ said to the log ─ heard ─┬─ refused
 *                                    ├─ waits … granted by a later entry ─┐
 *                                    └─ granted ──────────────────────────┴─ guard of its lane ─ sent ─ settled
 *
 * Owns: the calls and their states; in which copy they are (that of the shared log, or of the time alone while it is away).
 * Does not own: any decision (`fold.ts`), how entries come (`log/`), what to do about what was lost (`reconcile.ts`).
 * Keeps: a call is sent after this replica has applied the entry that grants it; a refusal out of the copy writes nothing (11).
 */
import type { CancelTimer, Clock } from '../../clock.ts';
import type { LeaseLostReason } from '../../telemetry/events.ts';
import type { BucketKey, CeilingKey, LaneKey, LeaseToken, ReplicaId, TicketId } from '../../ids.ts';
import type { Entry, Joined, Log, Urgency } from '../../log/log.ts';
import { retryUnavailableMs, type WhenDown } from '../when-down.policy.ts';
import {
  queuedWithoutForecast,
  type Admission,
  isCapped,
  type AdmissionReply,
  type BucketSnapshot,
  type CallerNow,
  type CeilingEdge,
  type Grant,
  type KeptSlots,
  type LaneCeiling,
  type Lesson,
  type LimiterListener,
  type Position,
  type Reconfiguration,
  type Reserved,
  type Reserving,
  type Settlement,
  type WaitForecast,
} from '../limiter.ts';
import { refusalShown } from '../policy/admit.policy.ts';
import type { BucketEvent, StoredAdmission } from '../policy/bucket-events.ts';
import { allWaiting, orderUnit, sequencePerMs, type Lease } from '../policy/bucket-state.policy.ts';
import { ceilingOf } from '../policy/lanes.policy.ts';
import { timed } from '../policy/lessons.policy.ts';
import { maxLatenessMs } from '../policy/meter.policy.ts';
import { forecast, forecastFirst } from '../policy/forecast.policy.ts';
import {
  closingBy,
  EndedCalls,
  type HeldGrant,
  isRequeued,
  type Origin,
  type OwnCall,
  type SettleEvent,
  usedBy,
  withoutRequeue,
} from './own-call.ts';
import { Alone } from './alone.ts';
import { callersIn, snapshotOf } from './bucket-snapshot.ts';
import { Copy, type CopyUser, type Heard } from './copy.ts';
import { keptSlotsIn, reservedIn } from './reserved.ts';
import type { LaneGuard } from './lane-guard.ts';
import { remedyFor, standingOf, ticketsOf } from './reconcile.ts';
import type { EntryEffects, SentCall, LogEvent, UsedUnits } from './state.ts';

/** While this replica has calls it is heard of this often, and looks whether the state has them. Milliseconds. */
const beatMs = 1_000;
/** A lane whose guard does not answer is asked for again after this time. Milliseconds. */
const guardRetryMs = 50;
/** Events that are said again after the log was away, at most; the oldest are left out. */
const maxUnsaid = 1_000;

export interface ShardParts {
  readonly clock: Clock;
  readonly replica: ReplicaId;
  readonly log: Log<LogEvent>;
  readonly listener: LimiterListener;
  /** Of serialized lanes; `null` = no other replica makes grants, so that the log alone keeps them. */
  readonly guard: LaneGuard | null;
  /** What this replica does while the log is away. */
  readonly whenDown: () => WhenDown;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
  /** Living replicas, this one among them. */
  readonly replicas: () => number;
  /** Puts this replica's sends of the last minute back under their ceilings, where Redis has lost them. Never rejects. */
  readonly restoreSends: () => Promise<unknown>;
  /** An event emptied a bucket, because the scheduler failed. */
  readonly onFailure: (failure: unknown) => void;
  /**
   * A call of a capped lane is under way, and another one may be as well: its lease has run out, is lost with entries of the log, or was
   * granted by a replica that is alone, while others live.
   */
  readonly onLeaseLost: (reason: LeaseLostReason) => void;
}

type Phase =
  /** The copy has not joined the log yet: arriving calls enter when it has. */
  | { readonly kind: 'joining' }
  | { readonly kind: 'joined' }
  /** The log is away: arriving calls are refused, the others wait. */
  | { readonly kind: 'away' }
  /** The log is away: the calls are in a log of this replica. */
  | { readonly kind: 'alone'; readonly alone: Alone }
  | { readonly kind: 'closed' };

/** A grant as this replica hears of it. */
interface HeardGrant extends Omit<Grant, 'holdsPlace'> {
  /** Of the lease, on the log's time. */
  readonly expiresAt: number;
  readonly origin: Origin;
  /** It was made too long ago to be used. */
  readonly isLate: boolean;
}

/** What is said again if it is lost: it concerns no call's own place. */
type Repeatable = Extract<BucketEvent, { kind: 'learn' | 'reconfigure' | 'wake' | 'open' }>;

interface Unsaid {
  readonly bucket: BucketKey;
  readonly event: Repeatable;
  /** It was heard, or the log is away. May be called again. */
  readonly done: () => void;
}

const unavailable: AdmissionReply = {
  kind: 'refused',
  reason: 'limiter_unavailable',
  retryInMs: retryUnavailableMs,
};

export class Shard {
  readonly #parts: ShardParts;
  readonly #shared: Copy;
  readonly #calls = new Map<TicketId, OwnCall>();
  /** Calls that have left or moved with a grant that is yet to be settled, by the lease of that grant. */
  readonly #left = new Map<LeaseToken, OwnCall>();
  readonly #ended: EndedCalls;
  readonly #unsaid: Unsaid[] = [];
  #phase: Phase = { kind: 'joining' };
  #cancelBeat: CancelTimer | null = null;
  #usedAt: number;

  constructor(parts: ShardParts) {
    const { clock, replica, leaseMs, log } = parts;
    this.#parts = parts;
    this.#ended = new EndedCalls(clock);
    this.#usedAt = clock.monotonic();
    this.#shared = new Copy({ clock, replica, leaseMs, log, user: this.#userOfShared() });
  }

  /** Joins the log. */
  begin(): void {
    this.#shared.begin();
  }

  /** Since when nobody has used it, monotonic milliseconds; `null` = it has calls. */
  get unusedSince(): number | null {
    return this.#calls.size + this.#left.size > 0 ? null : this.#usedAt;
  }

  hasBucket(bucket: BucketKey): boolean {
    return this.#copy.state.buckets.has(bucket);
  }

  /** The log has no bucket: nothing was learned that is still of use. */
  get isEmpty(): boolean {
    return this.#copy.state.buckets.size === 0;
  }

  /** Time has gone on: what is of no use any more is forgotten. */
  tick(): void {
    this.#copy.say({ kind: 'tick' });
  }

  admit(admission: Admission): Promise<AdmissionReply> {
    this.#touch();
    const known = this.#calls.get(admission.ticket);
    if (known !== undefined) return Promise.resolve(this.#replyAgain(known));
    // This replica may have heard meanwhile of how many it is one.
    if (this.#phase.kind === 'away' && this.#parts.whenDown() === 'local') this.#goAlone();
    if (this.#phase.kind === 'away' || this.#phase.kind === 'closed') return Promise.resolve(unavailable);
    const stored = this.#copy.isJoined ? this.#stored(admission, true) : null;
    const refusal = stored === null ? null : this.#refusalFromCopy(admission.bucket, stored);
    if (refusal !== null) return Promise.resolve(refusal);
    return new Promise((answer) => this.#enter(this.#keep(admission, answer), stored));
  }

  /** Enters a call that comes from another bucket. It is never refused, and its grant is reported. */
  reenter(admission: Admission): void {
    this.#touch();
    this.#enter(this.#keep(admission, null));
  }

  /** Takes a call out, because it moves to another bucket. Returns its position; `null` = it is not here. */
  take(bucket: BucketKey, ticket: TicketId): Position | null {
    const call = this.#calls.get(ticket);
    if (call === undefined || call.admission.bucket !== bucket) return null;
    void this.cancel(bucket, ticket);
    return call.admission.position;
  }

  /** As of the port. While the log is away nothing can be kept in it. */
  reserve(admission: Admission, reserving: Reserving): Promise<Reserved | null> {
    if (!this.#copy.isJoined) return Promise.resolve(null);
    this.#touch();
    const event = { kind: 'reserve', admission: this.#stored(admission, true), reserving } as const;
    return new Promise((resolve) => {
      const hear = (heard: Heard): void =>
        resolve(heard !== 'lost' && heard?.kind === 'reserved' ? heard : null);
      this.#copy.say({ kind: 'in', bucket: admission.bucket, event }, hear);
    });
  }

  reserved(ceiling: CeilingKey): number {
    const { state, log } = this.#copy;
    return reservedIn(state, ceiling, log.now());
  }

  callers(bucket: BucketKey, lane: LaneKey): readonly CallerNow[] {
    const known = this.#copy.state.buckets.get(bucket);
    return known === undefined ? [] : callersIn(known, lane);
  }

  keptSlots(bucket: BucketKey, ceiling: CeilingKey, ticket: TicketId): KeptSlots | null {
    const { state, log } = this.#copy;
    return state.reserving.size === 0 ? null : keptSlotsIn(state, { bucket, ceiling, ticket }, log.now());
  }

  settle(grant: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    this.#touch();
    const found = this.#sentBy(grant);
    if (found === null) return Promise.resolve();
    const { call, held, hasLeft } = found;
    const settle: SettleEvent = {
      kind: 'settle',
      lease: held.lease,
      settlement: hasLeft ? withoutRequeue(settlement) : settlement,
      lesson: lesson === null ? null : this.#timed(lesson),
    };
    if (held.guard !== null && settlement.kind !== 'unknown') void held.guard.free(grant);
    this.#noteEnded(call, held, settle.settlement);
    const hear = (heard: Heard): void => {
      const isGone = heard !== 'lost' && heard?.kind === 'lease' && !heard.known;
      if (isGone && isCapped(call.admission)) this.#parts.onLeaseLost('expired');
    };
    if (isRequeued(settle.settlement)) return this.#sayReturning(call, settle, hear);
    if (hasLeft) this.#left.delete(grant.lease);
    else this.#calls.delete(grant.ticket);
    return this.#say(grant.bucket, settle, hear, this.#isAwaited(call, settle) ? 'now' : 'soon');
  }

  learn(grant: Grant, lesson: Lesson): Promise<void> {
    const lease = this.#sentBy(grant)?.held.lease;
    if (lease === undefined) return Promise.resolve();
    return this.#sayOrRepeat(grant.bucket, { kind: 'learn', lease, lesson: this.#timed(lesson) });
  }

  slotTaken(grant: Grant, edge: CeilingEdge | null): Promise<void> {
    const lease = this.#sentBy(grant)?.held.lease;
    return lease === undefined
      ? Promise.resolve()
      : this.#say(grant.bucket, { kind: 'slot_taken', lease, edge });
  }

  async reconfigure({ bucket, setting, lanes }: Reconfiguration): Promise<void> {
    const byLane = new Map(lanes.map((lane) => [lane.lane, lane]));
    for (const call of this.#calls.values()) {
      if (call.admission.bucket !== bucket) continue;
      call.admission = { ...call.admission, ...byLane.get(call.admission.lane), setting };
    }
    const event = { kind: 'reconfigure', setting, lanes } as const;
    if (this.#phase.kind === 'alone') {
      const share = this.#phase.alone.reconfigure(bucket, setting);
      await this.#say(bucket, { ...event, setting: share });
    }
    await this.#sayToAll(bucket, event);
  }

  async wake(bucket: BucketKey, lane: LaneKey): Promise<void> {
    if (this.#phase.kind === 'alone') await this.#say(bucket, { kind: 'wake', lane });
    else await this.#sayToAll(bucket, { kind: 'wake', lane });
  }

  async open(bucket: BucketKey, agoMs: number): Promise<void> {
    this.#touch();
    const event = { kind: 'open', agoMs } as const;
    if (this.#phase.kind === 'alone') await this.#say(bucket, event);
    await this.#sayToAll(bucket, event);
  }

  cancel(bucket: BucketKey, ticket: TicketId): Promise<void> {
    const call = this.#calls.get(ticket);
    if (call === undefined || call.admission.bucket !== bucket) return Promise.resolve();
    this.#calls.delete(ticket);
    this.#touch();
    answer(call, queuedWithoutForecast);
    switch (call.state.kind) {
      case 'entering':
      case 'waiting':
      case 'returning':
        return this.#say(bucket, { kind: 'cancel', ticket });
      case 'guarding':
        return this.#say(bucket, drop(call.state.held.lease));
      case 'sent':
        // Its call settles the grant.
        this.#left.set(call.state.held.grant.lease, call);
        return Promise.resolve();
    }
  }

  forecast(bucket: BucketKey, ticket: TicketId, serviceMs = 0): WaitForecast | null {
    const { state, log } = this.#copy;
    const known = state.buckets.get(bucket);
    return known === undefined ? null : forecast(known, ticket, log.now(), serviceMs);
  }

  statesLimit(bucket: BucketKey): boolean {
    for (const [meter, { reported }] of this.#copy.state.buckets.get(bucket)?.meters ?? [])
      if (reported !== null && (meter.startsWith('requests') || meter === 'cost')) return true;
    return false;
  }

  forecastFirst(bucket: BucketKey, lane: LaneKey): Omit<WaitForecast, 'ahead'> | null {
    const { state, log } = this.#copy;
    const known = state.buckets.get(bucket);
    return known === undefined ? null : forecastFirst(known, lane, log.now());
  }

  laneCeiling(bucket: BucketKey, key: LaneKey): LaneCeiling | null {
    const { state, log } = this.#copy;
    const lane = state.buckets.get(bucket)?.lanes.get(key);
    return lane === undefined ? null : ceilingOf(lane, log.now());
  }

  /** The state of those of these buckets that the log has. What waits and what is in flight are calls of this replica. */
  snapshot(buckets: ReadonlySet<BucketKey>): readonly BucketSnapshot[] {
    const { state, log } = this.#copy;
    const now = log.now();
    const own = this.#countCalls();
    return [...state.buckets].flatMap(([key, bucket]) => {
      if (!buckets.has(key)) return [];
      return { ...snapshotOf(key, bucket, now), ...(own.get(key) ?? { waiting: 0, inFlight: 0 }) };
    });
  }

  /** Takes what waits out of its lanes, and leaves the log. Leases of calls under way end by themselves. */
  async close(): Promise<void> {
    const waiting = [...this.#calls.values()].filter(({ state }) => state.kind !== 'sent');
    for (const { admission } of waiting) void this.cancel(admission.bucket, admission.ticket);
    const { alone } = this.#phase.kind === 'alone' ? this.#phase : { alone: null };
    this.#phase = { kind: 'closed' };
    for (const { done } of this.#unsaid) done();
    this.#cancelBeat?.();
    this.#cancelBeat = null;
    await alone?.copy.close();
    const isUnderWay = this.#calls.size + this.#left.size > 0;
    if (!isUnderWay) this.#shared.say({ kind: 'leave' });
    await this.#shared.close();
  }

  /** The copy in which this replica's calls are. */
  get #copy(): Copy {
    return this.#phase.kind === 'alone' ? this.#phase.alone.copy : this.#shared;
  }

  /** What is asked before a call of the lane is sent; `null` = nothing is. */
  #guardOf({ admission: { maxInFlight } }: OwnCall): LaneGuard | null {
    return maxInFlight === 1 && this.#phase.kind !== 'alone' ? this.#parts.guard : null;
  }

  #userOfShared(): CopyUser {
    return {
      onApplied: (effects, entry, agoMs) =>
        this.#onApplied(effects, entry, { agoMs, origin: { kind: 'log', sequence: entry.sequence } }),
      onJoined: (joined) => this.#onJoined(joined),
      onAway: () => this.#onAway(),
      awaitsOthers: () => this.#hasWaiting(),
    };
  }

  #userOfAlone(): CopyUser {
    return {
      onApplied: (effects, entry, agoMs) =>
        this.#onApplied(effects, entry, { agoMs, origin: { kind: 'alone' } }),
      onJoined: (joined) => this.#reconcile(joined, []),
      onAway: () => {},
      awaitsOthers: () => this.#hasWaiting(),
    };
  }

  // ── entering

  #keep(admission: Admission, answer: OwnCall['answer']): OwnCall {
    const call: OwnCall = { admission, state: { kind: 'entering' }, answer };
    this.#calls.set(admission.ticket, call);
    return call;
  }

  #enter(call: OwnCall, stored: StoredAdmission | null = null): void {
    call.state = { kind: 'entering' };
    if (!this.#copy.isJoined) return;
    const { bucket } = call.admission;
    const admission = stored ?? this.#stored(call.admission, call.answer !== null);
    this.#copy.say({ kind: 'admit', bucket, admission }, (heard) => this.#onAdmitHeard(call, heard));
  }

  #onAdmitHeard(call: OwnCall, heard: Heard): void {
    if (heard === 'lost' || !this.#isHere(call) || call.state.kind !== 'entering') return;
    if (heard?.kind === 'granted' || heard?.kind === 'queued') {
      call.admission = { ...call.admission, position: { kind: 'kept', order: heard.order } };
      call.state = { kind: 'waiting' };
      // A grant is taken with the other grants of its entry.
      if (heard.kind === 'granted') return;
      const { forecastMs, ahead, heldBy } = heard;
      return answer(call, { kind: 'queued', forecastMs, ahead, heldBy });
    }
    this.#calls.delete(call.admission.ticket);
    answer(call, heard?.kind === 'refused' ? heard : unavailable);
  }

  /** The call is asked about again, while it is here. */
  #replyAgain({ admission, state }: OwnCall): AdmissionReply {
    if (state.kind === 'sent') return { kind: 'granted', grant: state.held.grant };
    const expected = this.forecast(admission.bucket, admission.ticket);
    if (expected === null) return queuedWithoutForecast;
    const { waitMs: forecastMs, ahead, heldBy } = expected;
    return { kind: 'queued', forecastMs, ahead, heldBy };
  }

  /** Spares the log an entry, where one is sent to Redis. */
  #refusalFromCopy(key: BucketKey, admission: StoredAdmission): AdmissionReply | null {
    const { log, state } = this.#copy;
    const bucket = log.mayLose ? state.buckets.get(key) : undefined;
    return bucket === undefined ? null : refusalShown(bucket, admission, log.now());
  }

  /** The admission as the log takes it. A call that must not be refused any more comes with its order. */
  #stored(admission: Admission, mayBeRefused: boolean): StoredAdmission {
    const { bucket, setting, caller, reservation } = admission;
    const stored = {
      ticket: admission.ticket,
      lane: admission.lane,
      position: this.#storedPosition(admission, mayBeRefused),
      urgency: admission.urgency,
      callClass: admission.callClass,
      costs: admission.costs,
      document: admission.document,
      maxQueued: admission.maxQueued,
      maxWaitMs: admission.maxWaitMs,
      leaseMs: this.#parts.leaseMs,
      setting: this.#phase.kind === 'alone' ? this.#phase.alone.settingOf(bucket, setting) : setting,
      weight: admission.weight,
      maxInFlight: admission.maxInFlight,
      perMinute: admission.perMinute,
      ceilingTag: admission.ceilingTag,
    };
    const named = caller === undefined ? stored : { ...stored, caller };
    return reservation === undefined ? named : { ...named, reservation };
  }

  #storedPosition({ position, urgency }: Admission, mayBeRefused: boolean): StoredAdmission['position'] {
    if (position.kind === 'kept') return position;
    const at = this.#copy.arrivalAt(position.at);
    if (mayBeRefused) return { kind: 'arrival', at };
    return { kind: 'kept', order: urgency * orderUnit + Math.floor(Math.max(0, at) * sequencePerMs) };
  }

  // ── grants

  #onApplied(
    { grants, closed, beginsTerm, emptied }: EntryEffects,
    { term, replica }: Entry<LogEvent>,
    { agoMs, origin }: { readonly agoMs: number; readonly origin: Origin },
  ): void {
    const { listener, onFailure, leaseMs } = this.#parts;
    for (const { error } of emptied) onFailure(error);
    for (const { bucket, closedMs } of closed) listener.onClosed(bucket, closedMs);
    // For its own entries this replica waits, however long they take, as long as most of a lease is left: a grant that goes back is
    // made again by the entry that says so, and so it is used at last.
    const isOwn = replica === this.#parts.replica;
    const isLate = isOwn ? agoMs > leaseMs / 3 : isTooLate(agoMs);
    for (const granted of grants) {
      if (granted.replica === this.#parts.replica) this.#onGrant({ ...granted, origin, isLate });
    }
    if (beginsTerm) void this.#sayHere(term);
  }

  #onGrant({ ticket, bucket, lane, lease, expiresAt, isDue, origin, isLate }: HeardGrant): void {
    const call = this.#calls.get(ticket);
    if (call === undefined || call.admission.bucket !== bucket) return void this.#say(bucket, drop(lease));
    if (call.state.kind === 'sent' || call.state.kind === 'guarding') return goOn(call, lease, origin);
    if (isLate) return this.#putBack(call, lease, 0);
    const guard = this.#guardOf(call);
    const { learnedInFlight = null } = this.#copy.state.buckets.get(bucket) ?? {};
    const holdsPlace = isCapped(call.admission) || learnedInFlight !== null;
    const known = { ticket, bucket, lane, lease, holdsPlace, expiresAt: this.#copy.monotonicAt(expiresAt) };
    const grant: Grant = isDue === undefined ? known : { ...known, isDue };
    const held: HeldGrant = { grant, lease, origin, guard };
    if (guard === null) return this.#send(call, held);
    call.state = { kind: 'guarding', held };
    void this.#askGuard(call, held, guard);
  }

  async #askGuard(call: OwnCall, { grant }: HeldGrant, guard: LaneGuard): Promise<void> {
    const { clock, leaseMs } = this.#parts;
    const askedAt = clock.monotonic();
    const reply = await guard.take(grant, leaseMs);
    // What is left of the lease has to be long enough for the call.
    const isInTime = clock.monotonic() - askedAt <= leaseMs / 3;
    const held = this.#isHere(call) && call.state.kind === 'guarding' ? call.state.held : null;
    const isCurrent = held?.grant === grant;
    if (reply.kind === 'taken' && isInTime && isCurrent) return this.#send(call, held);
    if (reply.kind !== 'taken by another') void guard.free(grant);
    if (isCurrent)
      this.#putBack(call, held.lease, reply.kind === 'taken by another' ? reply.retryInMs : guardRetryMs);
  }

  #send(call: OwnCall, held: HeldGrant): void {
    const { replicas, onLeaseLost } = this.#parts;
    if (held.origin.kind === 'alone' && isCapped(call.admission) && replicas() > 1)
      onLeaseLost('unavailable');
    call.state = { kind: 'sent', held };
    if (call.answer === null) this.#parts.listener.onGrant(held.grant);
    else answer(call, { kind: 'granted', grant: held.grant });
  }

  #putBack(call: OwnCall, lease: LeaseToken, sleepMs: number): void {
    answer(call, queuedWithoutForecast);
    const settlement = { kind: 'returned', sleepMs, because: 'backoff' } as const;
    void this.#sayReturning(call, { kind: 'settle', lease, settlement, lesson: null });
  }

  /** Says a settlement after which the call waits again. */
  #sayReturning(call: OwnCall, settle: SettleEvent, hear: (heard: Heard) => void = () => {}): Promise<void> {
    call.state = { kind: 'returning', settle };
    return this.#say(call.admission.bucket, settle, (heard) => {
      hear(heard);
      const isReturning = call.state.kind === 'returning' && call.state.settle === settle;
      if (heard !== 'lost' && isReturning) call.state = { kind: 'waiting' };
    });
  }

  /** The call that goes by the grant; `null` = it does not any more. */
  #sentBy({ ticket, lease }: Grant): { call: OwnCall; held: HeldGrant; hasLeft: boolean } | null {
    const left = this.#left.get(lease);
    const call = left ?? this.#calls.get(ticket);
    if (call?.state.kind !== 'sent' || call.state.held.grant.lease !== lease) return null;
    return { call, held: call.state.held, hasLeft: left !== undefined };
  }

  /** Somebody may be waiting for what the end of the call does: its lane or bucket has a cap, or it failed, or calls wait, or it may open the bucket. */
  #isAwaited({ admission }: OwnCall, { settlement, lesson }: SettleEvent): boolean {
    const bucket = this.#copy.state.buckets.get(admission.bucket);
    const isPlain = settlement.kind === 'succeeded' && (lesson?.feedback.throttle ?? null) === null;
    return !isPlain || isCapped(admission) || bucket?.opened !== true || allWaiting(bucket) > 0;
  }

  #noteEnded({ admission }: OwnCall, { lease, origin }: HeldGrant, settlement: Settlement): void {
    if (!this.#shared.log.mayLose) return;
    const { bucket, setting, costs } = admission;
    const used = usedBy(costs, settlement);
    // Nothing is lost of what this replica tells itself; the shared log has to be told what it used.
    if (this.#phase.kind === 'alone' && origin.kind === 'alone') {
      return this.#phase.alone.noteUsed({ bucket, setting, costs: used, ...closingBy(settlement) });
    }
    const grantedBy = origin.kind === 'log' ? origin.sequence : null;
    this.#ended.note(lease, { bucket, setting, grantedBy, settlement, used });
  }

  // ── saying

  /** Says what happens in a bucket. Resolves when it was heard, or was lost. */
  #say(
    bucket: BucketKey,
    event: Exclude<BucketEvent, { kind: 'admit' }>,
    hear: (heard: Heard) => void = () => {},
    urgency: Urgency = 'now',
  ): Promise<void> {
    return new Promise((resolve) => {
      const heard = (what: Heard): void => {
        hear(what);
        resolve();
      };
      this.#copy.say({ kind: 'in', bucket, event }, heard, urgency);
    });
  }

  /** While the log is being joined, whoever asked waits for that. */
  #sayOrRepeat(bucket: BucketKey, event: Repeatable): Promise<void> {
    if (this.#phase.kind === 'joining')
      return new Promise((done) => this.#repeatLater({ bucket, event, done }));
    return this.#say(bucket, event, (heard) => {
      if (heard === 'lost') this.#repeatLater({ bucket, event, done() {} });
    });
  }

  /** Says it to the shared log, also while that is away: then when it is back. */
  #sayToAll(bucket: BucketKey, event: Repeatable): Promise<void> {
    if (this.#phase.kind !== 'alone') return this.#sayOrRepeat(bucket, event);
    this.#repeatLater({ bucket, event, done() {} });
    return Promise.resolve();
  }

  #repeatLater(unsaid: Unsaid): void {
    if (this.#phase.kind === 'closed') return;
    this.#unsaid.push(unsaid);
    if (this.#unsaid.length > maxUnsaid) this.#unsaid.shift()?.done();
  }

  #timed(lesson: Lesson): SettleEvent['lesson'] & {} {
    const learned = timed(lesson, this.#copy.log.now());
    // A response speaks of the quota of all replicas together, not of this one's share: only a refusal is learned from.
    if (this.#phase.kind === 'alone') return { ...learned, feedback: { ...learned.feedback, meters: [] } };
    return learned;
  }

  // ── the log comes and goes

  #onAway(): void {
    if (this.#phase.kind === 'alone' || this.#phase.kind === 'closed') return;
    for (const { done } of this.#unsaid) done();
    if (this.#parts.whenDown() === 'local') return this.#goAlone();
    this.#phase = { kind: 'away' };
    for (const call of this.#calls.values()) {
      if (call.state.kind !== 'entering' || call.answer === null) continue;
      this.#calls.delete(call.admission.ticket);
      answer(call, unavailable);
    }
  }

  #goAlone(): void {
    const { clock, replica, leaseMs, replicas } = this.#parts;
    const user = this.#userOfAlone();
    const alone = new Alone(this.#shared, { clock, replica, leaseMs, replicas: replicas(), user });
    this.#phase = { kind: 'alone', alone };
    // A reload may have been on its way.
    for (const { bucket, event } of this.#unsaid) {
      if (event.kind === 'reconfigure') alone.reconfigure(bucket, event.setting);
    }
    alone.begin();
  }

  #onJoined(joined: Joined): void {
    if (this.#phase.kind === 'closed') return;
    const { alone } = this.#phase.kind === 'alone' ? this.#phase : { alone: null };
    const used = alone?.used() ?? [];
    this.#phase = { kind: 'joined' };
    void alone?.copy.close();
    this.#reconcile(joined, used);
    for (const { bucket, event, done } of this.#unsaid.splice(0))
      void this.#sayOrRepeat(bucket, event).then(done);
  }

  /** Brings what the copy says of the calls and what this replica knows of them together. */
  #reconcile({ term, termBegan }: Joined, usedAlone: readonly UsedUnits[]): void {
    const { state } = this.#copy;
    const origin = this.#originOfLast();
    const grants: { readonly call: OwnCall; readonly lease: Lease }[] = [];
    const enters: OwnCall[] = [];
    const holds: OwnCall[] = [];
    const used =
      this.#phase.kind === 'alone' ? [] : [...usedAlone, ...this.#ended.takeLost(state, termBegan)];
    this.#endStrangers();
    for (const call of [...this.#calls.values(), ...this.#left.values()]) {
      const standing = standingOf(state, call);
      if (standing.kind !== 'absent') keepPosition(call, standing.order);
      const remedy = remedyFor(call.state, standing, this.#ended);
      if (remedy.kind === 'enter') enters.push(call);
      else if (remedy.kind === 'take') grants.push({ call, lease: remedy.lease });
      else if (remedy.kind === 'hold') {
        holds.push(call);
        if (isCapped(call.admission) && isGrantedByLog(call)) this.#parts.onLeaseLost('epoch');
      } else if (remedy.kind === 'go on') goOn(call, remedy.lease.token, origin);
      else if (remedy.kind === 'settle again') this.#settleAgain(call, remedy.lease.token);
      else if (remedy.kind === 'wait') {
        call.state = { kind: 'waiting' };
        answer(call, this.#replyAgain(call));
      }
    }
    this.#report(holds, used);
    void this.#sayHere(term);
    for (const call of enters) this.#enter(call);
    for (const { call, lease } of grants) this.#takeGrant(call, lease, origin);
  }

  #report(holds: readonly OwnCall[], used: readonly UsedUnits[]): void {
    const sent = holds.flatMap(sentCalls);
    if (sent.length + used.length === 0) return;
    const at = this.#parts.clock.monotonic();
    this.#copy.say({ kind: 'report', sent, used }, (heard) => {
      if (heard === 'lost') this.#ended.keepUnreported(used, at);
      else for (const call of holds) renewOrigin(call, this.#originOfLast());
    });
  }

  /** Where entries were lost, sends under the ceilings may be lost, too: they are put back before others go on. */
  async #sayHere(term: number): Promise<void> {
    const { replica, restoreSends } = this.#parts;
    const copy = this.#copy;
    const known = copy.state.term;
    if (known?.number === term && !known.awaited.includes(replica)) return;
    await restoreSends();
    copy.say({ kind: 'here', term });
  }

  /** Takes out of the state what it has for this replica and no call here stands behind. */
  #endStrangers(): void {
    const { replica } = this.#parts;
    const held = new Set(
      [...this.#left.values()].flatMap(({ state }) => (state.kind === 'sent' ? [state.held.lease] : [])),
    );
    for (const { bucket, ticket, lease } of ticketsOf(this.#copy.state, replica)) {
      if (this.#calls.get(ticket)?.admission.bucket === bucket || (lease !== null && held.has(lease)))
        continue;
      if (lease === null) {
        void this.#say(bucket, { kind: 'cancel', ticket });
        continue;
      }
      void this.#say(bucket, { kind: 'settle', lease, settlement: this.#ended.endOf(lease), lesson: null });
    }
  }

  #settleAgain(call: OwnCall, lease: LeaseToken): void {
    const settlement = this.#ended.settlementOf(lease);
    if (settlement !== null)
      void this.#sayReturning(call, { kind: 'settle', lease, settlement, lesson: null });
  }

  #takeGrant({ admission }: OwnCall, lease: Lease, origin: Origin): void {
    const { ticket, bucket, lane } = admission;
    const { token, grantedAt, expiresAt } = lease;
    // A lane or bucket with a cap is not granted anything at the beginning of a time alone: this grant is older, and no guard is there to ask.
    const isOfLog = origin.kind === 'alone' && isCapped(admission);
    const isLate = isOfLog || isTooLate(this.#copy.log.now() - grantedAt);
    this.#onGrant({ ticket, bucket, lane, lease: token, expiresAt, origin, isLate });
  }

  /** The last entry that the copy has applied: what it has found in the state came no later. */
  #originOfLast(): Origin {
    if (this.#phase.kind === 'alone') return { kind: 'alone' };
    return { kind: 'log', sequence: this.#shared.last?.sequence ?? 0 };
  }

  // ── once a second

  #touch(): void {
    this.#usedAt = this.#parts.clock.monotonic();
    if (this.#phase.kind !== 'closed')
      this.#cancelBeat ??= this.#parts.clock.after(beatMs, () => this.#beat());
  }

  #countCalls(): ReadonlyMap<BucketKey, { waiting: number; inFlight: number }> {
    const counts = new Map<BucketKey, { waiting: number; inFlight: number }>();
    for (const { admission, state } of [...this.#calls.values(), ...this.#left.values()]) {
      const count = counts.get(admission.bucket) ?? { waiting: 0, inFlight: 0 };
      count[state.kind === 'sent' || state.kind === 'guarding' ? 'inFlight' : 'waiting'] += 1;
      counts.set(admission.bucket, count);
    }
    return counts;
  }

  /** A call waits here: any entry may grant it. */
  #hasWaiting(): boolean {
    for (const { state } of this.#calls.values())
      if (state.kind === 'waiting' || state.kind === 'returning') return true;
    return false;
  }

  #isHere(call: OwnCall): boolean {
    return this.#calls.get(call.admission.ticket) === call;
  }

  /** Is heard of while it has calls, keeps their lanes, and enters again what the state lacks. */
  #beat(): void {
    this.#cancelBeat = null;
    if (this.#phase.kind === 'joined') this.#ended.forgetOld();
    if (this.#calls.size + this.#left.size === 0) return;
    this.#cancelBeat = this.#parts.clock.after(beatMs, () => this.#beat());
    const copy = this.#copy;
    if (!copy.isJoined) return;
    copy.say({ kind: 'tick' });
    for (const call of [...this.#calls.values(), ...this.#left.values()]) {
      const { state } = call;
      if (state.kind === 'sent') void state.held.guard?.take(state.held.grant, this.#parts.leaseMs);
      if (state.kind !== 'waiting' || !copy.log.mayLose) continue;
      const remedy = remedyFor(state, standingOf(copy.state, call), this.#ended);
      if (remedy.kind === 'enter') this.#enter(call);
      else if (remedy.kind === 'take') this.#takeGrant(call, remedy.lease, this.#originOfLast());
    }
  }
}

/**
 * The replica was kept from running since the grant was made, for longer than pacing leaves a call for its way to the upstream. Until
 * then nobody else has been given the grant: that happens after `replicaLifeMs` at the earliest.
 */
const isTooLate = (agoMs: number): boolean => agoMs > maxLatenessMs;

const drop = (lease: LeaseToken): SettleEvent => ({
  kind: 'settle',
  lease,
  settlement: { kind: 'dropped' },
  lesson: null,
});

function answer(call: OwnCall, reply: AdmissionReply): void {
  call.answer?.(reply);
  call.answer = null;
}

function keepPosition(call: OwnCall, order: number): void {
  if (call.admission.position.kind === 'arrival') {
    call.admission = { ...call.admission, position: { kind: 'kept', order } };
  }
}

/** The call is under way, and the state has another lease for it now. */
function goOn(call: OwnCall, lease: LeaseToken, origin: Origin): void {
  const { state } = call;
  if (state.kind === 'sent' || state.kind === 'guarding') {
    call.state = { kind: state.kind, held: { ...state.held, lease, origin } };
  }
}

const isGrantedByLog = ({ state }: OwnCall): boolean =>
  state.kind === 'sent' && state.held.origin.kind === 'log';

function renewOrigin(call: OwnCall, origin: Origin): void {
  if (call.state.kind === 'sent') goOn(call, call.state.held.lease, origin);
}

function sentCalls({ admission, state }: OwnCall): SentCall[] {
  if (state.kind !== 'sent' || admission.position.kind !== 'kept') return [];
  const { bucket, lane, ticket, callClass, costs, setting } = admission;
  const { weight, maxInFlight, perMinute, ceilingTag } = admission;
  const laneSetting = { weight, maxInFlight, perMinute, ceilingTag };
  const { order } = admission.position;
  const caller = admission.caller === undefined ? {} : { caller: admission.caller };
  const { lease } = state.held;
  return [{ bucket, lane, ticket, lease, order, callClass, costs, setting, laneSetting, ...caller }];
}
