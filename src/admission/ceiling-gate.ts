/**
 * Turns grants of the bucket into leases: takes a slot of the ceiling for each at the moment of sending, in the order of its
 * lane, and returns grants for which the ceiling has no slot.
 *
 * Owns: that order, and each lane's `gate`. Does not own: which call is next (the limiter), callers and their deadlines
 * (`queued-call.ts`).
 * Keeps: a grant that arrives before its caller waits keeps its position, so that no grant behind it goes first; when the ceiling
 * is nearly full no call overtakes another (4); a grant that no call can use goes back whole, also the grant of a bucket that was
 * joined into another one while the ceiling was asked; no call leaves later behind its slot than the windows have to spare (1).
 */
import { Refusal } from '../errors.ts';
import type { Slot, TakeReply } from '../limiter/ceiling-store.ts';
import type { RefusedSlot } from '../limiter/redis/ceilings.ts';
import type { CeilingRef, CeilingState } from '../limiter/policy/ceiling.policy.ts';
import type { BucketKey, Grant, KeptSlots, Lesson, Settlement } from '../limiter/limiter.ts';
import { useOf } from './lanes.ts';
import type { LateRefusals } from './late-refusals.ts';
import { present, type QueuedCall, type WaitRegistry } from './queued-call.ts';
import type { AdmissionParts, Lease } from './ticket.ts';

/** A grant and the call that it is for. */
interface GrantedCall {
  readonly call: QueuedCall;
  readonly grant: Grant;
}

export interface GateParts extends AdmissionParts {
  readonly registry: WaitRegistry;
  readonly lateRefusals: LateRefusals;
  /** The limiter has learned from a response of a call whose default ceilings may yield. */
  readonly onAnswer: (bucket: BucketKey) => void;
}

/**
 * A lane whose grants keep being returned pauses for so long at least, milliseconds: by then all of them are returned, and the clock has
 * gone on. No timer is shorter.
 */
const lanePauseMs = 1;
/** For so long after a call found its ceiling away from its edge the next one asks ahead. Milliseconds. */
const askAheadForMs = 10_000;

/** The number of free slots from which on a ceiling counts as nearly used. */
export const edgeOf = (limit: number): number => Math.max(16, Math.ceil(limit / 10));

export class CeilingGate {
  readonly #parts: GateParts;
  /** How much later than it asks a call of a far store may leave; 0 = the store is near. Milliseconds. */
  #farLateMs = 0;

  constructor(parts: GateParts) {
    this.#parts = parts;
  }

  /**
   * Asks for the slot of an arriving call, which is about to ask for its grant and will probably get both: it then waits for one round trip
   * to the store instead of two. `null` = it asks when it is granted. One call of a lane at a time asks ahead, and none at the
   * edge of a ceiling, where the slot might be another call's (4).
   */
  askAhead(call: QueuedCall): Promise<SlotReply> | null {
    const { lane, request } = call;
    const { clock, limiter } = this.#parts;
    // For whoever came back for a reservation slots are kept, which is known with the grant.
    if (
      lane.waiting > 0 ||
      clock.monotonic() > lane.asksAheadUntil ||
      request.admission.reservation !== undefined
    )
      return null;
    if (limiter.laneCeiling(lane.bucket, lane.key) !== null) return null;
    lane.asksAheadUntil = -Infinity;
    const asked = this.#ask(call);
    // Whoever uses the reply notices that the store failed, which may be later than the failure.
    asked.catch(() => {});
    return asked;
  }

  /** No grant follows on a slot that was asked for ahead: it goes back, if one was taken. Rejects only with what is a bug. */
  async giveBack(asked: Promise<SlotReply>): Promise<void> {
    try {
      await this.#slotBack(await asked);
    } catch (failure) {
      // A store that is unavailable gave no slot. The call is not refused for it here: it may wait until the store is back.
      if (!(failure instanceof Refusal)) throw failure;
    }
  }

  /** The limiter granted a queued ticket; its call may have ended meanwhile. */
  onGrant(grant: Grant): void {
    const call = this.#parts.registry.calls.get(grant.ticket);
    if (call === undefined) this.#drop(grant);
    else this.pass(call, grant);
  }

  /**
   * The bucket granted the call: it gets its lease as soon as the ceiling has a slot and its caller waits.
   * @param askedAhead the ceiling's reply, if the call has asked ahead of its grant.
   */
  pass(call: QueuedCall, grant: Grant, askedAhead: Promise<SlotReply> | null = null): void {
    if (call.isGone || hasMoved(call, grant)) {
      if (askedAhead !== null) this.#parts.detached(this.giveBack(askedAhead));
      return this.#drop(grant);
    }
    const { gate } = call.lane;
    call.request = present(call.request, this.#parts.limiter);
    call.mayTakeReserved = grant.isDue === true;
    call.asksForSlot = true;
    const passed = this.#takeSlot({ call, grant }, askedAhead ?? this.#ask(call), gate.tail);
    // A store failed. No slot stays taken: a step that does not send gives its slot back before it calls the limiter, and a `take`
    // that rejects has given the former slot back (`limiter/ceiling-store.ts`).
    gate.tail = passed.catch((error: unknown) => {
      this.#drop(grant);
      this.#parts.registry.end(call, error);
    });
  }

  /** Resolves when the grant has its slot, or went back. `before`: the same of the lane's previous grant. */
  async #takeSlot(pending: GrantedCall, asked: Promise<SlotReply>, before: Promise<void>): Promise<void> {
    const { call, grant } = pending;
    const { gate } = call.lane;
    const { returned } = gate;
    // Slots that are too old are taken again by all calls of the lane at once: one after the other, each would wait for a reply of its own, in
    // which the slots of all behind it become too old.
    const slotReply = await this.#fresh(call, await asked);
    await before;
    // A call that has moved may have its lease of the other bucket by now: its caller is not waited for.
    if (hasMoved(call, grant)) return this.#stop(pending, slotReply, null);
    // An earlier grant was returned while this one waited for it: this one must not go first. In one process a lane that does not pause would
    // be granted the next call, which finds its predecessor returned, endlessly and without letting other events run.
    if (gate.returned > returned && isTaken(slotReply)) {
      await this.#slotBack(slotReply);
      return this.#requeue(pending, { kind: 'returned', sleepMs: lanePauseMs, because: 'backoff' });
    }
    if (isTaken(slotReply) && !call.isWaiting) await call.callerWaits();
    const fresh = await this.#fresh(call, slotReply);
    const { reply } = fresh;
    if (reply.kind === 'refused') return this.#onRefused(pending, fresh, reply);
    if (hasMoved(call, grant)) return this.#stop(pending, fresh, null);
    const now = this.#parts.clock.monotonic();
    const stop = call.reasonToStop(now);
    if (stop !== null || !call.isWaiting) return this.#stop(pending, fresh, stop);
    this.#handOver(pending, { ...fresh, reply }, now);
  }

  /** The ceiling has no slot: the call's lane sleeps until there is one. */
  #onRefused(pending: GrantedCall, { keptForOthers, ceilingTag }: SlotReply, reply: RefusedSlot): void {
    const { call } = pending;
    const { lateRefusals } = this.#parts;
    const waitMs = Math.max(lanePauseMs, reply.waitMs);
    if (keptForOthers !== null) {
      this.#requeue(pending, { kind: 'returned', sleepMs: waitMs, because: 'reserved' });
      return lateRefusals.onKept(call, { waitMs, count: keptForOthers.count });
    }
    this.#requeue(pending, {
      kind: 'returned',
      sleepMs: waitMs + this.#delayMs(call),
      because: reply.isDaily ? 'ceiling_day' : 'ceiling_minute',
      ceilingTag,
    });
    lateRefusals.plan();
  }

  /** The ceiling gave a slot, and nothing has come between: the call gets its lease. */
  #handOver(pending: GrantedCall, slot: TakenSlot, now: number): void {
    const { call } = pending;
    const { lane } = call;
    const { dayLeft } = slot.reply;
    lane.servedAt = now;
    const isMinuteAmple = this.#reportEdge(pending, slot);
    const { perDay } = slot.ceiling;
    const isDayAmple = dayLeft === null || perDay === null || dayLeft > edgeOf(perDay);
    if (call.isGrantedAtOnce && isMinuteAmple && isDayAmple) lane.asksAheadUntil = now + askAheadForMs;
    call.asksForSlot = false;
    this.#parts.registry.grant(call, new AdmittedLease(this.#parts, pending, slot));
  }

  /** The call ended or moved while the ceiling was asked, or must end now (`stop`): the grant goes back, and the slot if there is one. */
  async #stop({ call, grant }: GrantedCall, slotReply: SlotReply, stop: unknown): Promise<void> {
    await this.#slotBack(slotReply);
    this.#drop(grant);
    if (stop !== null) this.#parts.registry.end(call, stop);
  }

  /**
   * The granted call took a slot of its ceiling. While few are left, every one that is taken is reported to the limiter, which then lets no
   * more grants of the lane be outstanding than there are slots, so that no later call slips into the last one (4); away from the edge it
   * must stop counting. Returns whether it is away from it.
   */
  #reportEdge({ call, grant }: GrantedCall, { reply: { state }, ceilingTag }: TakenSlot): boolean {
    const { limiter, detached } = this.#parts;
    if (state === null || state.remaining > edgeOf(state.limit)) {
      const isCounted = limiter.laneCeiling(grant.bucket, grant.lane) !== null;
      if (isCounted) detached(limiter.slotTaken(grant, null));
      return true;
    }
    const { remaining: slots, nextSlotMs: freeInMs } = state;
    const nextSlotMs = slots <= 0 ? freeInMs + this.#delayMs(call) : freeInMs;
    detached(limiter.slotTaken(grant, { slots, nextSlotMs, ceilingTag }));
    return false;
  }

  /** Other lanes go first where it is their turn; a background call that is due waits for nobody. */
  #delayMs({ mayTakeReserved, lane }: QueuedCall): number {
    return mayTakeReserved ? 0 : this.#parts.registry.delayMs(lane);
  }

  /** Returns the ticket to its lane, without waiting until the limiter has heard of it: grants behind it go back with the same command. */
  #requeue({ call, grant }: GrantedCall, returned: Settlement): void {
    // Whether a moved call asks for a slot, and what its lane returned, concerns its grant of the other bucket.
    const isMoved = hasMoved(call, grant);
    if (!isMoved) {
      call.asksForSlot = false;
      call.lane.gate.returned += 1;
    }
    // The ticket of a call that is gone has left the lane; returning the grant would put it back, and nobody would remove it.
    if (call.isGone || isMoved) return this.#drop(grant);
    const { limiter, detached, registry } = this.#parts;
    if (call.isWaiting) registry.begins(call);
    const heard = (): void => {
      registry.causes.onEvent(call.lane);
      registry.moveToJoinedBucket(call);
    };
    detached(limiter.settle(grant, returned, null).then(heard));
  }

  /** A grant that no call can use any more goes back whole. */
  #drop(grant: Grant): void {
    const { detached, limiter } = this.#parts;
    detached(limiter.settle(grant, { kind: 'dropped' }, null));
  }

  // Slots. The ceiling counts a slot from the time at which it was taken, but it bounds what arrives upstream: a call that could not leave at
  // once takes its slot again. A store whose replies take long counts them from a later time.

  /**
   * The reply while its slot is fresh enough, as it is for most calls, else the reply to asking again. A refusal, the slot of a ceiling without
   * a minute, and that of a call that is not sent any more are not taken again.
   */
  async #fresh(call: QueuedCall, asked: SlotReply): Promise<SlotReply> {
    const { clock } = this.#parts;
    let slot = asked;
    while (isTaken(slot) && slot.ceiling.perMinute !== null && !call.isGone) {
      const now = clock.monotonic();
      if (now <= slot.goodUntil || now > call.deadline) break;
      slot = await this.#ask(call, slot);
    }
    return slot;
  }

  async #slotBack({ ceiling, reply }: SlotReply): Promise<void> {
    if (reply.kind === 'taken') await this.#parts.ceilings.giveSlotBack(ceiling, reply.slot);
  }

  /** Asks the call's ceiling for a slot, in the place of an earlier one; a far store for one of a call that leaves later. */
  async #ask(call: QueuedCall, earlier?: SlotReply): Promise<SlotReply> {
    const { clock, ceilings, limiter } = this.#parts;
    const { ceiling, lane } = call;
    const { bucket, ticket, ceilingTag } = call.request.admission;
    const again = earlier?.reply.kind === 'taken' ? earlier.reply.slot : undefined;
    const lateMs = this.#farLateMs;
    const askedAt = clock.monotonic();
    const kept = limiter.keptSlots(bucket, ceiling.key, ticket);
    const reply =
      kept === null
        ? await ceilings.take(ceiling, again, lateMs)
        : await this.#takeBeside(kept, { ceiling, again, lateMs });
    const now = clock.monotonic();
    const tookMs = now - askedAt;
    this.#farLateMs = tookMs > farMs ? Math.min(farReplies * tookMs, maxLateMs) : 0;
    lane.ceilingUse = useOf(ceiling, reply, now);
    const keptForOthers = reply.kind === 'refused' && !reply.isDaily ? kept : null;
    return { ceiling, ceilingTag, goodUntil: askedAt + lateMs + freshMs, reply, keptForOthers };
  }

  /** Takes a slot only where as many are left as are kept for reservations. */
  async #takeBeside(
    { count, forMs }: KeptSlots,
    { ceiling, again, lateMs }: { ceiling: CeilingRef; again: Slot | undefined; lateMs: number },
  ): Promise<TakeReply> {
    const { ceilings } = this.#parts;
    const { key, perMinute, perDay } = ceiling;
    const less = (limit: number | null): number | null => (limit === null ? null : limit - count);
    const others = { key, perMinute: less(perMinute), perDay: less(perDay) };
    if (Math.min(others.perMinute ?? 1, others.perDay ?? 1) < 1) {
      if (again !== undefined) await ceilings.giveSlotBack(ceiling, again);
      return { kind: 'refused', waitMs: forMs, isDaily: false };
    }
    const reply = await ceilings.take(others, again, lateMs);
    return reply.kind === 'taken'
      ? { ...reply, state: withSlots(reply.state, count) }
      : { ...reply, waitMs: Math.min(reply.waitMs, forMs) };
  }
}

/** True when the call's bucket was joined into another one: the call waits there, and a grant of the former bucket is of no use. */
const hasMoved = ({ request }: QueuedCall, { bucket }: Grant): boolean => request.admission.bucket !== bucket;

/**
 * The lease of a call that may be sent: the bucket's grant and the ceiling's slot, which end together and once.
 * Keeps: a lease is settled once (8); a call that was not sent gives its slot back (9).
 */
class AdmittedLease implements Lease {
  readonly grant: Grant;
  readonly #parts: GateParts;
  readonly #call: QueuedCall;
  readonly #slot: TakenSlot;
  #isSettled = false;

  constructor(parts: GateParts, { call, grant }: GrantedCall, slot: TakenSlot) {
    this.grant = grant;
    this.#parts = parts;
    this.#call = call;
    this.#slot = slot;
  }

  get ceiling(): CeilingState | null {
    const { ceiling, reply } = this.#slot;
    return withSlots(reply.state, ceiling.left?.perMinute ?? 0);
  }

  holds(): boolean {
    return this.#parts.clock.monotonic() < this.grant.expiresAt;
  }

  learn(lesson: Lesson): void {
    if (!this.#isSettled) this.#learned(this.#parts.limiter.learn(this.grant, lesson));
  }

  #learned(work: Promise<void>): void {
    const { detached, onAnswer } = this.#parts;
    const mayYield = this.#call.request.yielded !== null;
    detached(mayYield ? work.then(() => onAnswer(this.grant.bucket)) : work);
  }

  settle(settlement: Settlement, lesson: Lesson | null): void {
    if (this.#isSettled) return;
    this.#isSettled = true;
    const { limiter, ceilings, detached, leaseMs, lateRefusals } = this.#parts;
    const { grant } = this;
    const call = this.#call;
    const { ceiling, reply } = this.#slot;
    const ticketEnded = settlement.kind === 'succeeded';
    if (call.state.kind === 'sent') call.become({ kind: 'sent', ticketEnded });
    const isSent = settlement.kind !== 'dropped' && settlement.kind !== 'returned';
    if (!isSent) detached(ceilings.giveSlotBack(ceiling, reply.slot));
    this.#learned(limiter.settle(grant, settlement, lesson));
    const stillMs = standstillMs(settlement, call, leaseMs);
    if (stillMs > 0) lateRefusals.onStandstill(grant.bucket, grant.lane, stillMs);
  }
}

/** How long the lane of a call sends nothing after this settlement, milliseconds. */
function standstillMs(settlement: Settlement, { request }: QueuedCall, leaseMs: number): number {
  if (settlement.kind === 'throttled' || settlement.kind === 'returned') return settlement.sleepMs;
  return settlement.kind === 'unknown' && request.admission.maxInFlight === 1 ? leaseMs : 0;
}

/** A slot older than this is taken again before its call leaves: less than the windows have to spare. Milliseconds. */
const freshMs = 100;
/** A store whose last reply took longer than this is far: its slots are counted from a later time. Milliseconds. */
const farMs = freshMs / 2;
/** A call of a far store may leave so many replies after it has asked: calls before it may have to ask again. */
const farReplies = 3;
/** Slots are counted from at most this much later, however slow the store is. Milliseconds. */
const maxLateMs = 2_000;

/** The reply of a ceiling that was asked for a slot. */
export interface SlotReply {
  /** The ceiling, with the limits under which it was asked, and their tag: a reload may have changed them since. */
  readonly ceiling: CeilingRef;
  readonly ceilingTag: string;
  /**
   * A call with this slot has to leave by then, on the monotonic clock: at most `freshMs` after the time that the slot is counted
   * from, which is not before it was asked for.
   */
  readonly goodUntil: number;
  readonly reply: TakeReply;
  /** It has slots, but these are kept for reservations of others; `null` = that is not why it refused. */
  readonly keptForOthers: KeptSlots | null;
}

type TakenSlot = SlotReply & { readonly reply: Extract<TakeReply, { kind: 'taken' }> };

const isTaken = (slot: SlotReply): slot is TakenSlot => slot.reply.kind === 'taken';

/** A ceiling with so many slots more: its client is told of the workspace's ceiling, not of the part that the call may use. */
const withSlots = (state: CeilingState | null, more: number): CeilingState | null =>
  state === null ? null : { ...state, limit: state.limit + more, remaining: state.remaining + more };
