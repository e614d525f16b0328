/**
 * The limiter of one log: this replica's calls in the buckets of one upstream credential.
 *
 *   admit ─ said to the log ─ heard ─┬─ refused
 *                                    ├─ waits … granted by a later entry ─┐
 *                                    └─ granted ──────────────────────────┴─ guard of its lane ─ sent ─ settled
 *
 * Owns: the calls and their states; in which copy they are (that of the shared log, or of this replica's own while the shared one is
 * away, `alone.ts`); what becomes of them where entries were lost. Does not own: any decision (`fold.ts`), how entries come (`log/`).
 * Keeps: a call is sent after this replica has applied the entry that grants it; a refusal out of the copy writes nothing (11). After a
 * loss a call that waits is in its lane again at its position (7), one that was sent holds its place and is not sent again (8), and nothing
 * stays in the state that no call here stands behind (9).
 */
import type { CancelTimer } from '../../clock.ts';
import type { LeaseLostReason } from '../../telemetry/events.ts';
import type { BucketKey, LaneKey, LeaseToken, TicketId } from '../../ids.ts';
import type { Entry, Log, Urgency } from '../../log/log.ts';
import {
  retryUnavailableMs,
  type WhenDown,
  queuedWithoutForecast,
  type Admission,
  type AdmissionReply,
  type CeilingEdge,
  type Grant,
  type Lesson,
  type LimiterListener,
  type Position,
  type Reconfiguration,
  type Reserved,
  type Reserving,
  type Settlement,
} from '../limiter.ts';
import { refusalShown } from '../policy/scheduler.policy.ts';
import { isCapped } from '../policy/lanes.policy.ts';
import {
  allWaiting,
  type BucketEvent,
  type Lease,
  orderUnit,
  sequencePerMs,
  type StoredAdmission,
  timed,
} from '../policy/bucket-state.policy.ts';
import { forecast } from '../policy/forecast.policy.ts';
import { maxLatenessMs } from '../policy/meter.policy.ts';
import { Alone } from './alone.ts';
import { Copy, type CopyParts, type Heard } from './copy.ts';
import type { LaneGuard } from './lane-guard.ts';
import type { EntryEffects, LogEvent, SentCall, SharedGrant, UsedUnits } from './fold.ts';
import type { Costs } from '../../call.ts';

/** While this replica has calls it is heard of this often, and looks whether the state has them. Milliseconds. */
const beatMs = 1_000;
/** A lane whose guard does not answer is asked for again after this time. Milliseconds. */
const guardRetryMs = 50;
/** Events that are said again after the log was away, at most; the oldest are left out. */
const maxUnsaid = 1_000;

export interface ShardParts extends CopyParts {
  readonly log: Log<LogEvent>;
  readonly listener: LimiterListener;
  /** Of serialized lanes; `null` = no other replica makes grants, so that the log alone keeps them. */
  readonly guard: LaneGuard | null;
  /** What this replica does while the log is away. */
  readonly whenDown: () => WhenDown;
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

/** A grant as this replica hears of it. */
type HeardGrant = Omit<SharedGrant, 'replica' | 'at'>;

/** What is said again if it is lost: it concerns no call's own place. */
type Repeatable = Extract<BucketEvent, { kind: 'reconfigure' | 'open' }>;
/** It is told to the log as soon as the copy has joined. `done`: it is said, or nobody waits for that any more. */
interface Unsaid {
  readonly bucket: BucketKey;
  readonly event: Repeatable;
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
  /** By ticket; calls that have left or moved with a grant that is yet to be settled, by the lease of that grant. */
  readonly #calls = new Map<TicketId | LeaseToken, OwnCall>();
  /** How leases of the shared log ended of which that has not been heard there. */
  readonly #unheard = new Map<LeaseToken, Settlement>();
  #unsaid: Unsaid[] = [];
  /** What was used alone, if the log went away again before that was heard. */
  #unreported: readonly UsedUnits[] = [];
  /** The calls are in a log of this replica while the shared one is away; `null` = in the shared one. */
  #alone: Alone | null = null;
  /** `refuses`: the log is away; arriving calls are refused, the others wait. */
  #phase: 'serves' | 'refuses' | 'closed' = 'serves';
  #cancelBeat: CancelTimer | null = null;
  #usedAt: number;

  constructor(parts: ShardParts) {
    this.#parts = parts;
    this.#usedAt = parts.clock.monotonic();
    this.#shared = new Copy(parts, parts.log, {
      ...this.#user,
      onJoined: (term) => this.#onJoined(term),
      onAway: () => this.#onAway(),
    });
  }

  readonly #user = {
    onApplied: (effects: EntryEffects, entry: Entry<LogEvent>, agoMs: number) =>
      this.#onApplied(effects, entry, agoMs),
    /** Any entry may grant a call that waits here. */
    awaitsOthers: () => this.#calls.values().some(({ state }) => state.kind === 'waiting'),
  };

  /** Joins the log. */
  begin(): void {
    this.#shared.begin();
  }

  /** Since when nobody has used it, monotonic milliseconds; `null` = it has calls. */
  get unusedSince(): number | null {
    return this.#calls.size > 0 ? null : this.#usedAt;
  }

  /** The copy in which this replica's calls are. */
  get copy(): Copy {
    return this.#alone?.copy ?? this.#shared;
  }

  admit(admission: Admission): Promise<AdmissionReply> {
    this.#touch();
    // This replica may have heard meanwhile of how many it is one.
    if (this.#phase === 'refuses' && this.#parts.whenDown() === 'local') this.#goAlone();
    if (this.#phase !== 'serves') return Promise.resolve(unavailable);
    const stored = this.copy.isJoined ? this.#stored(admission, true) : null;
    const refusal = stored === null ? null : this.#refusalFromCopy(admission.bucket, stored);
    if (refusal !== null) return Promise.resolve(refusal);
    return new Promise((resolve) => this.#enter(this.#keep(admission, resolve), stored));
  }

  /** Enters a call that comes from another bucket. It is never refused, and its grant is reported. */
  reenter(admission: Admission): void {
    this.#touch();
    this.#enter(this.#keep(admission, null));
  }

  /** Takes a call out, because it moves to another bucket. Returns its position; `null` = it is not here. */
  withdraw(bucket: BucketKey, ticket: TicketId): Position | null {
    const call = this.#calls.get(ticket);
    if (call === undefined || call.admission.bucket !== bucket) return null;
    void this.cancel(bucket, ticket);
    return call.admission.position;
  }

  /** As of the port. While the log is away nothing can be kept in it. */
  reserve(admission: Admission, reserving: Reserving): Promise<Reserved | null> {
    this.#touch();
    if (!this.copy.isJoined) return Promise.resolve(null);
    const event = { kind: 'reserve', admission: this.#stored(admission, true), reserving } as const;
    return new Promise((resolve) => {
      this.copy.say({ kind: 'in', bucket: admission.bucket, event }, (heard) =>
        resolve(heard !== 'lost' && heard?.kind === 'reserved' ? heard : null),
      );
    });
  }

  settle(grant: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    this.#touch();
    const sent = this.#sentBy(grant);
    if (sent === null) return Promise.resolve();
    const { call, held } = sent;
    const { admission } = call;
    const hasLeft = this.#calls.has(grant.lease);
    const settle: SettleEvent = {
      kind: 'settle',
      lease: held.lease,
      settlement: hasLeft ? withoutRequeue(settlement) : settlement,
      lesson: lesson === null ? null : this.#timed(lesson),
    };
    if (held.guard !== null && settlement.kind !== 'unknown') void held.guard.free(grant);
    this.#noteEnded(admission, held, settle.settlement);
    if (isRequeued(settle.settlement)) call.state = { kind: 'waiting', putBack: settle };
    else this.#calls.delete(hasLeft ? grant.lease : grant.ticket);
    const hasRunOut = this.#wasUnheard();
    const hear = (heard: Heard): void => {
      if (heard !== 'lost' && this.#alone === null) this.#unheard.delete(held.lease);
      const isGone = heard === 'lost' ? hasRunOut : heard?.kind === 'lease' && !heard.known;
      if (isGone && isCapped(admission)) this.#parts.onLeaseLost('expired');
    };
    return this.#say(grant.bucket, settle, hear, this.#isAwaited(admission, settle) ? 'now' : 'soon');
  }

  learn(grant: Grant, lesson: Lesson): Promise<void> {
    return this.#sayOf(grant, ({ lease }) => ({ kind: 'learn', lease, lesson: this.#timed(lesson) }));
  }

  slotTaken(grant: Grant, edge: CeilingEdge | null): Promise<void> {
    return this.#sayOf(grant, ({ lease }) => ({ kind: 'slot_taken', lease, edge }));
  }

  async reconfigure({ bucket, setting, lanes }: Reconfiguration): Promise<void> {
    const byLane = new Map(lanes.map((lane) => [lane.lane, lane]));
    for (const call of this.#calls.values()) {
      if (call.admission.bucket !== bucket) continue;
      call.admission = { ...call.admission, ...byLane.get(call.admission.lane), setting };
    }
    await this.#sayToAll(bucket, { kind: 'reconfigure', setting, lanes });
  }

  wake(bucket: BucketKey, lane: LaneKey): Promise<void> {
    return this.#say(bucket, { kind: 'wake', lane });
  }

  async open(bucket: BucketKey, agoMs: number): Promise<void> {
    this.#touch();
    await this.#sayToAll(bucket, { kind: 'open', agoMs });
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
        return this.#say(bucket, { kind: 'cancel', ticket });
      case 'guarding':
        return this.#say(bucket, settleEvent(call.state.held.lease, { kind: 'dropped' }));
      case 'sent':
        // Its call settles the grant.
        this.#calls.set(call.state.held.grant.lease, call);
        return Promise.resolve();
    }
  }

  /** How many calls of this replica wait in each bucket, and are in flight. */
  counts(): ReadonlyMap<BucketKey, { waiting: number; inFlight: number }> {
    const counts = new Map<BucketKey, { waiting: number; inFlight: number }>();
    for (const { admission, state } of this.#calls.values()) {
      const count = counts.get(admission.bucket) ?? { waiting: 0, inFlight: 0 };
      count[state.kind === 'sent' || state.kind === 'guarding' ? 'inFlight' : 'waiting'] += 1;
      counts.set(admission.bucket, count);
    }
    return counts;
  }

  /** Takes what waits out of its lanes, and leaves the log. Leases of calls under way end by themselves. */
  async close(): Promise<void> {
    for (const { admission, state } of this.#calls.values())
      if (state.kind !== 'sent') void this.cancel(admission.bucket, admission.ticket);
    this.#phase = 'closed';
    for (const { done } of this.#unsaid) done();
    this.#cancelBeat?.();
    void this.#alone?.copy.close();
    if (this.#calls.size === 0) this.#shared.say({ kind: 'leave' });
    await this.#shared.close();
  }

  // ── entering

  #keep(admission: Admission, reply: OwnCall['answer']): OwnCall {
    const call: OwnCall = { admission, state: { kind: 'entering' }, answer: reply };
    this.#calls.set(admission.ticket, call);
    return call;
  }

  #enter(call: OwnCall, stored: StoredAdmission | null = null): void {
    call.state = { kind: 'entering' };
    if (!this.copy.isJoined) return;
    const admission = stored ?? this.#stored(call.admission, call.answer !== null);
    this.copy.say({ kind: 'admit', bucket: call.admission.bucket, admission }, (heard) => {
      if (heard === 'lost' || !this.#isHere(call) || call.state.kind !== 'entering') return;
      if (heard?.kind === 'granted' || heard?.kind === 'queued') {
        keepPosition(call, heard.order);
        call.state = { kind: 'waiting', putBack: null };
        // A grant is taken with the other grants of its entry.
        if (heard.kind === 'granted') return;
        const { forecastMs, ahead, heldBy } = heard;
        return answer(call, { kind: 'queued', forecastMs, ahead, heldBy });
      }
      this.#calls.delete(call.admission.ticket);
      answer(call, heard?.kind === 'refused' ? heard : unavailable);
    });
  }

  /** Spares the log an entry, where one is sent to Redis. */
  #refusalFromCopy(key: BucketKey, admission: StoredAdmission): AdmissionReply | null {
    const { log, state } = this.copy;
    const bucket = log.mayLose ? state.buckets.get(key) : undefined;
    return bucket === undefined ? null : refusalShown(bucket, admission, log.now());
  }

  /** The admission as the log takes it. A call that must not be refused any more comes with its order. */
  #stored({ bucket, ...admission }: Admission, mayBeRefused: boolean): StoredAdmission {
    const { leaseMs } = this.#parts;
    const setting = this.#alone?.settingOf(bucket, admission.setting) ?? admission.setting;
    if (admission.position.kind === 'kept')
      return { ...admission, position: admission.position, setting, leaseMs };
    const at = this.copy.arrivalAt(admission.position.at);
    const order = admission.urgency * orderUnit + Math.floor(Math.max(0, at) * sequencePerMs);
    const position = mayBeRefused ? ({ kind: 'arrival', at } as const) : ({ kind: 'kept', order } as const);
    return { ...admission, position, setting, leaseMs };
  }

  // ── grants

  #onApplied(
    { grants, closed, beginsTerm, failures }: EntryEffects,
    { term, replica }: Entry<LogEvent>,
    agoMs: number,
  ): void {
    const { listener, onFailure, leaseMs, replica: self } = this.#parts;
    for (const failure of failures) onFailure(failure);
    for (const { bucket, closedMs } of closed) listener.onClosed(bucket, closedMs);
    // A grant by an entry of this replica may be used until a third of its lease is over: put back, it would only be made again. One by
    // another replica's entry only for as long as pacing allows (`maxLatenessMs`).
    const isLate = replica === self ? agoMs > leaseMs / 3 : isTooLate(agoMs);
    for (const granted of grants) if (granted.replica === self) this.#onGrant(granted, isLate);
    if (beginsTerm) void this.#sayHere(term);
  }

  #onGrant({ ticket, bucket, lane, lease, expiresAt, isDue }: HeardGrant, isLate: boolean): void {
    const call = this.#calls.get(ticket);
    if (call === undefined || call.admission.bucket !== bucket)
      return void this.#say(bucket, settleEvent(lease, { kind: 'dropped' }));
    const isMadeAlone = this.#alone !== null;
    if (call.state.kind === 'sent' || call.state.kind === 'guarding')
      return adoptLease(call, lease, isMadeAlone);
    if (isLate) return this.#putBack(call, lease, 0);
    const isSerialized = call.admission.maxInFlight === 1 && !isMadeAlone;
    const guard = isSerialized ? this.#parts.guard : null;
    const { learnedInFlight = null } = this.copy.state.buckets.get(bucket) ?? {};
    const holdsPlace = isCapped(call.admission) || learnedInFlight !== null;
    const known = { ticket, bucket, lane, lease, holdsPlace, expiresAt: this.copy.monotonicAt(expiresAt) };
    const grant: Grant = isDue === undefined ? known : { ...known, isDue };
    const held: HeldGrant = { grant, lease, isMadeAlone, guard };
    if (guard === null) return this.#send(call, held);
    call.state = { kind: 'guarding', held };
    void this.#askGuard(call, grant, guard);
  }

  async #askGuard(call: OwnCall, grant: Grant, guard: LaneGuard): Promise<void> {
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
    const { replicas, onLeaseLost, listener } = this.#parts;
    if (held.isMadeAlone && isCapped(call.admission) && replicas() > 1) onLeaseLost('unavailable');
    call.state = { kind: 'sent', held };
    if (call.answer === null) listener.onGrant(held.grant);
    else answer(call, { kind: 'granted', grant: held.grant });
  }

  /** The grant is not used: the call waits again, at its position. */
  #putBack(call: OwnCall, lease: LeaseToken, sleepMs: number): void {
    answer(call, queuedWithoutForecast);
    const putBack = settleEvent(lease, { kind: 'returned', sleepMs, because: 'backoff' });
    call.state = { kind: 'waiting', putBack };
    void this.#say(call.admission.bucket, putBack);
  }

  /** The call that goes by the grant; `null` = it does not any more. */
  #sentBy({ ticket, lease }: Grant): { readonly call: OwnCall; readonly held: HeldGrant } | null {
    const call = this.#calls.get(lease) ?? this.#calls.get(ticket);
    if (call?.state.kind !== 'sent' || call.state.held.grant.lease !== lease) return null;
    return { call, held: call.state.held };
  }

  /** Nothing was heard of this replica for so long that its leases have run out. */
  #wasUnheard(): boolean {
    const { replica, leaseMs } = this.#parts;
    const { state, log } = this.copy;
    return log.now() - (state.replicas.scoreOf(replica) ?? 0) > leaseMs;
  }

  /** Somebody may be waiting for what the end of the call does: its lane or bucket has a cap, or it failed, or calls wait, or it may open the bucket. */
  #isAwaited(admission: Admission, { settlement, lesson }: SettleEvent): boolean {
    const bucket = this.copy.state.buckets.get(admission.bucket);
    const isPlain = settlement.kind === 'succeeded' && (lesson?.feedback.throttle ?? null) === null;
    return !isPlain || isCapped(admission) || bucket?.opened !== true || allWaiting(bucket) > 0;
  }

  #noteEnded(admission: Admission, held: HeldGrant, settlement: Settlement): void {
    // Nothing is lost of what this replica tells itself; the shared log has to be told what it used.
    if (this.#alone !== null && held.isMadeAlone)
      this.#alone.noteUsed(admission.bucket, admission.setting, usedBy(admission.costs, settlement));
    else if (this.#shared.log.mayLose) this.#unheard.set(held.lease, settlement);
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
      this.copy.say({ kind: 'in', bucket, event }, heard, urgency);
    });
  }

  /** Says what happened to a call that was sent, unless it has ended. */
  #sayOf(
    grant: Grant,
    eventOf: (held: HeldGrant) => Extract<BucketEvent, { kind: 'learn' | 'slot_taken' }>,
  ): Promise<void> {
    const held = this.#sentBy(grant)?.held;
    return held === undefined ? Promise.resolve() : this.#say(grant.bucket, eventOf(held));
  }

  /** Says it to the shared log, also where that cannot hear it yet: then when it is joined. Resolves then, or when it is away. */
  #sayToAll(bucket: BucketKey, event: Repeatable): Promise<void> {
    return new Promise((done) => this.#sayUnsaid({ bucket, event, done }));
  }

  #sayUnsaid(unsaid: Unsaid): void {
    const { bucket, event, done } = unsaid;
    void this.#say(bucket, this.#ownShareOf(event), (heard) => {
      const isHeard = heard !== 'lost' && this.#alone === null;
      if (isHeard || this.#phase === 'closed') return done();
      this.#unsaid.push(unsaid);
      if (this.#unsaid.length > maxUnsaid) this.#unsaid.shift()?.done();
      if (this.#alone !== null || this.#phase !== 'serves') done();
    });
  }

  #ownShareOf(event: Repeatable): Repeatable {
    if (this.#alone === null || event.kind !== 'reconfigure') return event;
    return { ...event, setting: this.#alone.shareOf(event.setting) };
  }

  #timed(lesson: Lesson): SettleEvent['lesson'] & {} {
    const learned = timed(lesson, this.copy.log.now());
    // A response speaks of the quota of all replicas together, not of this one's share: only a refusal is learned from.
    return this.#alone === null ? learned : { ...learned, feedback: { ...learned.feedback, meters: [] } };
  }

  // ── the log comes and goes

  #onAway(): void {
    if (this.#alone !== null) return;
    for (const { done } of this.#unsaid) done();
    if (this.#parts.whenDown() === 'local') return this.#goAlone();
    this.#phase = 'refuses';
    for (const call of this.#calls.values()) {
      if (call.state.kind !== 'entering' || call.answer === null) continue;
      this.#calls.delete(call.admission.ticket);
      answer(call, unavailable);
    }
  }

  #goAlone(): void {
    const user = { ...this.#user, onJoined: () => {}, onAway: () => {} };
    const alone = new Alone(this.#shared, this.#parts, user, this.#parts.replicas());
    this.#phase = 'serves';
    this.#alone = alone;
    alone.begin();
    // A reload may have been on its way.
    for (const { bucket, event } of this.#unsaid) void this.#say(bucket, this.#ownShareOf(event));
    this.#reconcile(alone.copy.state.term?.number ?? 1, []);
  }

  #onJoined(term: number): void {
    const used = [...this.#unreported, ...(this.#alone?.used() ?? [])];
    void this.#alone?.copy.close();
    this.#alone = null;
    this.#phase = 'serves';
    this.#unreported = [];
    this.#reconcile(term, used);
    this.#unheard.clear();
    for (const unsaid of this.#unsaid.splice(0)) this.#sayUnsaid(unsaid);
  }

  /** Brings what the copy says of the calls and what this replica knows of them together. */
  #reconcile(term: number, used: readonly UsedUnits[]): void {
    this.#endStrangers();
    const lost: OwnCall[] = [];
    const sent: SentCall[] = [];
    for (const call of this.#calls.values()) {
      const { admission, state } = call;
      if (state.kind !== 'sent' || this.#standingOf(call).lease !== null) continue;
      const { lease, isMadeAlone } = state.held;
      lost.push(call);
      sent.push({ bucket: admission.bucket, lease, admission: this.#stored(admission, false) });
      // The label's word for a term.
      if (isCapped(admission) && !isMadeAlone) this.#parts.onLeaseLost('epoch');
    }
    if (sent.length + used.length > 0) {
      this.copy.say({ kind: 'report', sent, used }, (heard) => {
        if (heard === 'lost') this.#unreported = [...this.#unreported, ...used];
        else
          for (const call of lost)
            if (call.state.kind === 'sent') adoptLease(call, call.state.held.lease, this.#alone !== null);
      });
    }
    void this.#sayHere(term);
    for (const call of this.#calls.values()) this.#amend(call);
  }

  /** Where the state has a call; `null` = not at all, or it has no grant. */
  #standingOf({ admission }: OwnCall): { readonly order: number | null; readonly lease: Lease | null } {
    const bucket = this.copy.state.buckets.get(admission.bucket);
    const { order, lease } = bucket?.tickets.get(admission.ticket) ?? { order: null, lease: null };
    return { order, lease: lease === null ? null : (bucket?.leases.get(lease) ?? null) };
  }

  /** Does what is to be done where the state has something else of a call than this replica. */
  #amend(call: OwnCall): void {
    const { state } = call;
    const { order, lease } = this.#standingOf(call);
    if (order !== null) keepPosition(call, order);
    if (lease !== null && (state.kind === 'sent' || state.kind === 'guarding')) {
      // It was granted again, although it is under way: the new lease is the one to settle.
      if (lease.token !== state.held.lease) adoptLease(call, lease.token, this.#alone !== null);
    } else if (lease !== null) {
      const putBack = state.kind === 'waiting' ? state.putBack : null;
      if (putBack?.lease !== lease.token) return this.#takeGrant(call, lease);
      void this.#say(call.admission.bucket, putBack);
    } else if (state.kind !== 'sent') {
      if (order === null) return this.#enter(call);
      if (state.kind !== 'waiting') call.state = { kind: 'waiting', putBack: null };
      if (state.kind === 'entering') answer(call, this.#queued(call));
    }
  }

  #queued({ admission: { bucket: key, ticket } }: OwnCall): AdmissionReply {
    const { state, log } = this.copy;
    const bucket = state.buckets.get(key);
    const expected = bucket === undefined ? null : forecast(bucket, ticket, log.now());
    return expected === null
      ? queuedWithoutForecast
      : { kind: 'queued', forecastMs: expected.waitMs, ahead: expected.ahead, heldBy: expected.heldBy };
  }

  /** Where entries were lost, sends under the ceilings may be lost, too: they are put back before others go on. */
  async #sayHere(term: number): Promise<void> {
    const { replica, restoreSends } = this.#parts;
    const { copy } = this;
    const known = copy.state.term;
    if (known?.number === term && !known.awaited.includes(replica)) return;
    await restoreSends();
    copy.say({ kind: 'here', term });
  }

  /** Takes out of the state what it has for this replica and no call here stands behind. */
  #endStrangers(): void {
    for (const [bucket, { tickets }] of this.copy.state.buckets) {
      for (const { id: ticket, lease, replica } of tickets.values()) {
        if (replica !== this.#parts.replica || this.#calls.get(ticket)?.admission.bucket === bucket) continue;
        if (lease === null) void this.#say(bucket, { kind: 'cancel', ticket });
        else if (!this.#calls.has(lease)) {
          // It may not be known any more how it ended: its call may have been sent.
          const settlement = this.#unheard.get(lease) ?? { kind: 'succeeded', spent: null };
          void this.#say(bucket, { ...settleEvent(lease, withoutRequeue(settlement)), isLate: true });
        }
      }
    }
  }

  #takeGrant({ admission }: OwnCall, { token: lease, grantedAt, expiresAt }: Lease): void {
    const { ticket, bucket, lane } = admission;
    // A replica that begins to be alone grants nothing in a lane or bucket with a cap: this grant is older, and no guard is there to ask.
    const isOfLog = this.#alone !== null && isCapped(admission);
    const isLate = isOfLog || isTooLate(this.copy.log.now() - grantedAt);
    this.#onGrant({ ticket, bucket, lane, lease, expiresAt }, isLate);
  }

  // ── once a second

  #touch(): void {
    this.#usedAt = this.#parts.clock.monotonic();
    if (this.#phase !== 'closed') this.#cancelBeat ??= this.#parts.clock.after(beatMs, () => this.#beat());
  }

  #isHere(call: OwnCall): boolean {
    return this.#calls.get(call.admission.ticket) === call;
  }

  /** Is heard of while it has calls, keeps their lanes, and enters again what the state lacks. */
  #beat(): void {
    this.#cancelBeat = null;
    if (this.#calls.size === 0) return;
    this.#cancelBeat = this.#parts.clock.after(beatMs, () => this.#beat());
    const { copy } = this;
    if (!copy.isJoined) return;
    copy.say({ kind: 'tick' });
    for (const call of this.#calls.values()) {
      const { state } = call;
      if (state.kind === 'sent') void state.held.guard?.take(state.held.grant, this.#parts.leaseMs);
      else if (state.kind === 'waiting' && copy.log.mayLose) this.#amend(call);
    }
  }
}

/**
 * The replica was kept from running since the grant was made, for longer than pacing leaves a call for its way to the upstream. Until
 * then nobody else has been given the grant: that happens after `replicaLifeMs` (`scheduler.policy.ts`) at the earliest.
 */
const isTooLate = (agoMs: number): boolean => agoMs > maxLatenessMs;

// A call of this replica in a log, from its admission to its end: its states, and how it ends.

type SettleEvent = Extract<BucketEvent, { kind: 'settle' }>;

/** A grant that this replica goes by. */
interface HeldGrant {
  /** As the call gets it, and settles it. */
  readonly grant: Grant;
  /** The lease in the state. Another one than the call's where the log lost that one and granted the call anew meanwhile. */
  readonly lease: LeaseToken;
  /** This replica made it for itself while the log was away. */
  readonly isMadeAlone: boolean;
  /** The guard that was asked for the lane; `null` = the lane has none. It knows the call by the lease of `grant`. */
  readonly guard: LaneGuard | null;
}

type OwnCallState =
  /** Asks to be admitted, and has no reply: it may be refused. */
  | { readonly kind: 'entering' }
  /**
   * Stands in its lane, or has said a settlement that puts it there. `putBack`: that settlement; `null` = it had no grant. Where the log has
   * not heard it, or has lost it, the state still has the grant.
   */
  | { readonly kind: 'waiting'; readonly putBack: SettleEvent | null }
  /** Granted; the guard of its lane is being asked. */
  | { readonly kind: 'guarding'; readonly held: HeldGrant }
  /** It has its grant, and may be under way. */
  | { readonly kind: 'sent'; readonly held: HeldGrant };

interface OwnCall {
  /** With the latest settings. Its position is that of its arrival until the log has given it an order. */
  admission: Admission;
  state: OwnCallState;
  /** Takes the reply to its admission; `null` = has it. */
  answer: ((reply: AdmissionReply) => void) | null;
}

function answer(call: OwnCall, reply: AdmissionReply): void {
  call.answer?.(reply);
  call.answer = null;
}

function keepPosition(call: OwnCall, order: number): void {
  if (call.admission.position.kind === 'arrival')
    call.admission = { ...call.admission, position: { kind: 'kept', order } };
}

/** The call is under way, and the state has this lease for it now. */
function adoptLease(call: OwnCall, lease: LeaseToken, isMadeAlone: boolean): void {
  const { state } = call;
  if (state.kind === 'sent' || state.kind === 'guarding')
    call.state = { kind: state.kind, held: { ...state.held, lease, isMadeAlone } };
}

const settleEvent = (lease: LeaseToken, settlement: Settlement): SettleEvent => ({
  kind: 'settle',
  lease,
  settlement,
  lesson: null,
});

/** The ticket waits again. */
const isRequeued = (settlement: Settlement): boolean =>
  settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);

/** The settlement for a call that has left meanwhile: no ticket goes back to its lane. */
function withoutRequeue(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}

/** What a call used that ended like this: nothing, if it was not sent or not run. */
function usedBy(costs: Costs, settlement: Settlement): Costs {
  if (settlement.kind === 'succeeded') return { ...costs, ...settlement.spent };
  return settlement.kind === 'unknown' ? costs : {};
}
