/**
 * Turns grants of the bucket into leases: takes a slot of the ceiling for each at the moment of sending, in the order of its
 * lane, and returns grants for which the ceiling has no slot.
 *
 * Owns: that order, and each lane's `gate`. Does not own: which call is next (the limiter), callers and their deadlines
 * (`wait-registry.ts`), the age of slots (`ceiling-slots.ts`).
 * Keeps: a grant that arrives before its caller waits keeps its position, so that no grant behind it goes first; when the ceiling
 * is nearly full no call overtakes another (4); a grant that no call can use goes back whole, also the grant of a bucket that was
 * joined into another one while the ceiling was asked.
 */
import type { CeilingState } from '../limiter/policy/ceiling.policy.ts';
import type { BucketKey, Grant, Lesson, Settlement } from '../limiter/limiter.ts';
import {
  type CeilingSlots,
  edgeOf,
  isTaken,
  type RefusedSlot,
  type SlotReply,
  type SlotsAhead,
  type TakenSlot,
} from './ceiling-slots.ts';
import type { LateRefusals } from './late-refusals.ts';
import type { Ending, QueuedCall } from './queued-call.ts';
import type { LaneRotation, SlotsBack } from './lane-rotation.ts';
import { present } from './reconfigure.ts';
import type { AdmissionParts, Lease } from './ticket.ts';
import type { WaitCauses } from './wait-causes.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** A grant and the call that it is for. */
interface GrantedCall {
  readonly call: QueuedCall;
  readonly grant: Grant;
}

interface LeaseParts extends AdmissionParts {
  readonly lateRefusals: LateRefusals;
  /** The limiter has learned from a response of a call whose default ceilings may yield. */
  readonly onAnswer: (bucket: BucketKey) => void;
}

export interface GateNeighbours {
  readonly slots: CeilingSlots;
  readonly slotsAhead: SlotsAhead;
  readonly slotsBack: SlotsBack;
  readonly registry: WaitRegistry;
  readonly rotation: LaneRotation;
  readonly lateRefusals: LateRefusals;
  readonly onAnswer: LeaseParts['onAnswer'];
  readonly causes: WaitCauses;
}

/**
 * A lane whose grants keep being returned pauses for so long at least, milliseconds: by then all of them are returned, and the clock has
 * gone on. No timer is shorter.
 */
const lanePauseMs = 1;

export class CeilingGate {
  readonly #parts: AdmissionParts;
  readonly #slots: CeilingSlots;
  readonly #neighbours: GateNeighbours;
  readonly #leaseParts: LeaseParts;

  constructor(parts: AdmissionParts, neighbours: GateNeighbours) {
    this.#parts = parts;
    this.#slots = neighbours.slots;
    this.#neighbours = neighbours;
    const { lateRefusals, onAnswer } = neighbours;
    this.#leaseParts = { ...parts, lateRefusals, onAnswer };
  }

  /** The limiter granted a queued ticket; its call may have ended meanwhile. */
  onGrant(grant: Grant): void {
    const call = this.#neighbours.registry.find(grant.ticket);
    if (call === undefined) this.#drop(grant);
    else this.pass(call, grant);
  }

  /**
   * The bucket granted the call: it gets its lease as soon as the ceiling has a slot and its caller waits.
   * @param askedAhead the ceiling's reply, if the call has asked ahead of its grant.
   */
  pass(call: QueuedCall, grant: Grant, askedAhead: Promise<SlotReply> | null = null): void {
    if (call.isGone || hasMoved(call, grant)) {
      this.#giveBack(call, askedAhead);
      return this.#drop(grant);
    }
    const { gate } = call.lane;
    call.request = present(call.request, this.#parts.limiter);
    call.mayTakeAll = grant.isDue === true;
    const passed = this.#takeSlot({ call, grant }, this.#askForSlot(call, askedAhead), gate.tail);
    // A store failed. No slot stays taken: a step that does not send gives its slot back before it calls the limiter, and a `take`
    // that rejects has given the former slot back (`limiter/ceiling-store.ts`).
    gate.tail = passed.catch((error: unknown) => {
      this.#drop(grant);
      this.#neighbours.registry.end(call, { kind: 'failed', error });
      return true;
    });
  }

  /** The slot that the call has asked for ahead, or asks for now. */
  #askForSlot(call: QueuedCall, askedAhead: Promise<SlotReply> | null): Promise<SlotReply> {
    if (askedAhead !== null) this.#neighbours.slotsAhead.onGranted(call);
    this.#neighbours.rotation.onAsked(call.lane);
    call.asksForSlot = true;
    return askedAhead ?? this.#slots.ask(call);
  }

  #giveBack(call: QueuedCall, askedAhead: Promise<SlotReply> | null): void {
    if (askedAhead !== null) this.#parts.detached(this.#neighbours.slotsAhead.giveBack(call, askedAhead));
  }

  /**
   * Resolves to true when grants behind this one may go on.
   * @param before resolves when the lane's previous grant is done; false = that grant went back.
   */
  async #takeSlot(
    pending: GrantedCall,
    asked: Promise<SlotReply>,
    before: Promise<boolean>,
  ): Promise<boolean> {
    const { call, grant } = pending;
    const { gate } = call.lane;
    const { returned } = gate;
    const slotReply = await this.#slots.keepUntil(call, asked, before);
    const isInOrder = await before;
    // A call that has moved may have its lease of the other bucket by now: its caller is not waited for.
    if (hasMoved(call, grant)) return this.#stop(pending, slotReply, null);
    // An earlier grant was returned while this one waited for it: this one must not go first.
    if (!isInOrder && gate.returned > returned && isTaken(slotReply)) {
      await this.#slots.giveSlotBack(slotReply);
      this.#requeue(pending, this.#behindReturned(call));
      return false;
    }
    if (slotReply.reply.kind === 'taken') await call.callerWaits();
    const fresh = await this.#slots.keepFresh(call, slotReply);
    if (isTaken(fresh)) return this.#handOver(pending, fresh);
    this.#onRefused(pending, fresh);
    return false;
  }

  /** The ceiling has no slot: the call's lane sleeps until there is one, which the limits must still be those of. */
  #onRefused(pending: GrantedCall, slotReply: RefusedSlot): void {
    const { call } = pending;
    const { key } = call.request.ceiling;
    const { reply, keptForOthers, askedAt } = slotReply;
    const { rotation, lateRefusals, slotsBack } = this.#neighbours;
    const waitMs = Math.max(lanePauseMs, reply.waitMs);
    if (keptForOthers !== null) {
      slotsBack.onRefused(key, askedAt);
      this.#requeue(pending, { kind: 'returned', sleepMs: waitMs, because: 'reserved' });
      lateRefusals.onKept(call, { waitMs, count: keptForOthers.count });
      return;
    }
    const isPresent = isUnderLimits(slotReply, call);
    if (isPresent) slotsBack.onRefused(key, askedAt);
    this.#requeue(pending, {
      kind: 'returned',
      sleepMs: isPresent ? waitMs + rotation.delayMs(call) : 0,
      because: reply.isDaily ? 'ceiling_day' : 'ceiling_minute',
      ceilingTag: call.request.admission.ceilingTag,
    });
    lateRefusals.onCeilingFull(key);
  }

  /** The ceiling gave a slot: the call gets its lease, unless it ended or moved to another bucket meanwhile. */
  #handOver(pending: GrantedCall, slot: TakenSlot): true | Promise<true> {
    const { call, grant } = pending;
    const { registry, slotsAhead } = this.#neighbours;
    if (hasMoved(call, grant)) return this.#stop(pending, slot, null);
    const stop = call.reasonToStop(this.#parts.clock.monotonic());
    if (stop !== null || !call.isWaiting) return this.#stop(pending, slot, stop);
    this.#neighbours.rotation.onServed(call.lane);
    this.#reportEdge(pending, isUnderLimits(slot, call) ? slot.reply.state : null);
    slotsAhead.onHandedOver(call, slot);
    call.asksForSlot = false;
    registry.grant(call, new AdmittedLease(this.#leaseParts, pending, slot));
    return true;
  }

  /** The call ended or moved while the ceiling was asked, or must end now (`stop`): the grant goes back, and the slot if there is one. */
  async #stop({ call, grant }: GrantedCall, slotReply: SlotReply, stop: Ending | null): Promise<true> {
    await this.#slots.giveSlotBack(slotReply);
    this.#drop(grant);
    if (stop !== null) this.#neighbours.registry.end(call, stop);
    return true;
  }

  /**
   * The granted call took a slot of its ceiling. While few are left, every one that is taken is reported to the limiter, which then lets no
   * more grants of the lane be outstanding than there are slots, so that no later call slips into the last one (4); away from the edge it
   * must stop counting. @param state what is left; `null` = there is no minute ceiling, or it is not known
   */
  #reportEdge({ call, grant }: GrantedCall, state: CeilingState | null): void {
    const { limiter, detached } = this.#parts;
    if (state === null || state.remaining > edgeOf(state.limit)) {
      const isCounted = limiter.laneCeiling(grant.bucket, grant.lane) !== null;
      if (isCounted) detached(limiter.slotTaken(grant, null));
      return;
    }
    const { remaining: slots, nextSlotMs: freeInMs } = state;
    const nextSlotMs = slots <= 0 ? freeInMs + this.#neighbours.rotation.delayMs(call) : freeInMs;
    const { ceilingTag } = call.request.admission;
    detached(limiter.slotTaken(grant, { slots, nextSlotMs, ceilingTag }));
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
    const { causes, registry } = this.#neighbours;
    if (call.isWaiting) causes.begins(call);
    call.observed?.onHeld();
    const { limiter, detached } = this.#parts;
    const heard = (): void => {
      causes.onEvent(call.lane);
      registry.moveToJoinedBucket(call);
    };
    detached(limiter.settle(grant, returned, null).then(heard));
  }

  /**
   * The call had a slot, and gave it back because an earlier grant was returned. The limiter grants the lane again while grants behind this
   * one are still to be returned. In one process each new grant would then find its predecessor returned, endlessly and without letting other
   * events run: so the lane pauses the second time.
   */
  #behindReturned(call: QueuedCall): Settlement {
    const now = this.#parts.clock.monotonic();
    const isAgain = call.slotGivenBackAt !== null && now - call.slotGivenBackAt < lanePauseMs;
    call.slotGivenBackAt = now;
    return { kind: 'returned', sleepMs: isAgain ? lanePauseMs : 0, because: 'backoff' };
  }

  /** A grant that no call can use any more goes back whole. */
  #drop(grant: Grant): void {
    const { detached, limiter } = this.#parts;
    detached(limiter.settle(grant, { kind: 'dropped' }, null));
  }
}

/** True when the call's bucket was joined into another one: the call waits there, and a grant of the former bucket is of no use. */
const hasMoved = ({ request }: QueuedCall, { bucket }: Grant): boolean => request.admission.bucket !== bucket;

/** False when a reload changed the limits after the ceiling was asked: its reply says nothing about the present limits. */
const isUnderLimits = ({ ceiling }: SlotReply, call: QueuedCall): boolean =>
  ceiling.perMinute === call.ceiling.perMinute && ceiling.perDay === call.ceiling.perDay;

/**
 * The lease of a call that may be sent: the bucket's grant and the ceiling's slot, which end together and once.
 * Keeps: a lease is settled once (8); a call that was not sent gives its slot back (9).
 */
class AdmittedLease implements Lease {
  readonly grant: Grant;
  readonly #parts: LeaseParts;
  readonly #call: QueuedCall;
  readonly #slot: TakenSlot;
  #isSettled = false;

  constructor(parts: LeaseParts, { call, grant }: GrantedCall, slot: TakenSlot) {
    this.grant = grant;
    this.#parts = parts;
    this.#call = call;
    this.#slot = slot;
  }

  get ceiling(): CeilingState | null {
    const { ceiling, reply } = this.#slot;
    const left = ceiling.left?.perMinute ?? 0;
    return left === 0 ? reply.state : withPlaces(reply.state, left);
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
    const points = lesson?.feedback.requestedCost ?? null;
    if (points !== null) lateRefusals.onCostKnown(call, points);
  }
}

/** The client is told of its workspace's ceiling, not of the part that the call may use. */
const withPlaces = (state: CeilingState | null, more: number): CeilingState | null =>
  state === null ? null : { ...state, limit: state.limit + more, remaining: state.remaining + more };

/** How long the lane of a call sends nothing after this settlement, milliseconds. */
function standstillMs(settlement: Settlement, { request }: QueuedCall, leaseMs: number): number {
  if (settlement.kind === 'throttled' || settlement.kind === 'returned') return settlement.sleepMs;
  return settlement.kind === 'unknown' && request.admission.maxInFlight === 1 ? leaseMs : 0;
}
