/**
 * From a grant of the bucket to a lease: charges the ceiling at the moment of sending, lane by lane in order, and hands
 * back what cannot go now.
 *
 * Owns: that order, and each lane's `gate`. Does not own: which call is next (the limiter), callers and their deadlines
 * (`wait-registry.ts`), the age of slots (`ceiling-slots.ts`).
 * Keeps: a grant that comes before its caller waits keeps its position all the same, so that no grant behind it goes
 * first; at the edge of the ceiling no call overtakes (4); a grant that no call can use goes back whole.
 */
import type { TakeReply } from '../limiter/ceilings.ts';
import type { Grant, Settlement } from '../limiter/limiter.ts';
import type { CeilingEdge } from './ceiling-edge.ts';
import { CeilingSlots, type AskedSlot } from './ceiling-slots.ts';
import type { EarlyRejection } from './early-rejection.ts';
import type { Ending } from './ending.ts';
import type { LaneRotation } from './lane-rotation.ts';
import { applyLimits } from './lanes.ts';
import { AdmittedLease } from './lease.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** A grant and its call, on the way through their lane's gate. */
interface Passage {
  readonly call: QueuedCall;
  readonly grant: Grant;
}

/** Why a ticket goes back to its lane. */
type Requeued = 'no slot' | 'gave its slot back';

type Refused = Extract<TakeReply, { kind: 'refused' }>;
type Taken = Extract<TakeReply, { kind: 'taken' }>;

export interface GateNeighbours {
  readonly registry: WaitRegistry;
  readonly rotation: LaneRotation;
  readonly edge: CeilingEdge;
  readonly rejection: EarlyRejection;
}

export class CeilingGate {
  readonly #parts: AdmissionParts;
  readonly #slots: CeilingSlots;
  readonly #to: GateNeighbours;

  constructor(parts: AdmissionParts, neighbours: GateNeighbours) {
    this.#parts = parts;
    this.#slots = new CeilingSlots(parts);
    this.#to = neighbours;
  }

  /** The limiter granted a queued ticket; its call may have ended meanwhile. */
  onGrant(grant: Grant): void {
    const call = this.#to.registry.find(grant.ticket);
    if (call === undefined) this.#drop(grant);
    else this.pass(call, grant);
  }

  /** The call is granted: it gets its lease when the ceiling agrees and its caller waits. */
  pass(call: QueuedCall, grant: Grant): void {
    if (call.isGone || hasMoved(call, grant)) return this.#drop(grant);
    const { gate } = call.lane;
    applyLimits(call.lane, call.request.admission.ceiling);
    const charged = this.#charge({ call, grant }, this.#askForSlot(call), gate.tail);
    // A store failed. No slot is left taken: every step that has one and does not send gives it back before it asks the limiter
    // anything, and a `take` that rejects has given its former slot back (`limiter/ceilings.ts`).
    gate.tail = charged.catch((error: unknown) => {
      this.#drop(grant);
      this.#to.registry.end(call, { kind: 'failed', error });
      return true;
    });
  }

  /** `null` = the ceiling is known to have no slot. */
  #askForSlot(call: QueuedCall): Promise<AskedSlot> | null {
    if (this.#isAsleep(call)) return null;
    this.#to.rotation.onAsked(call.lane);
    call.asksForSlot = true;
    return this.#slots.ask(call);
  }

  /**
   * True when the ceiling need not be asked: the lane sleeps, and the limiter did not know of this sleep when the call took its
   * position. A grant given in spite of a sleep that the limiter knew of means that a slot came back: it asks the ceiling.
   */
  #isAsleep({ lane: { gate }, positionedUnder }: QueuedCall): boolean {
    const { asleep } = gate;
    return asleep !== null && asleep !== positionedUnder && this.#parts.clock.monotonic() < asleep.until;
  }

  /**
   * Resolves to true when the lane may go on behind this grant.
   * @param before resolves when the grant before this one is charged; false = it went back.
   */
  async #charge(
    passage: Passage,
    asked: Promise<AskedSlot> | null,
    before: Promise<boolean>,
  ): Promise<boolean> {
    const { call } = passage;
    const { gate } = call.lane;
    const { returned } = gate;
    const early = asked === null ? null : await this.#slots.keepUntil(call, asked, before);
    const isInOrder = await before;
    // An earlier grant was returned while this one waited for it. `gate.asleep` cannot show that: a slot that is given back
    // clears it. The count of returned grants can.
    if (early === null || (!isInOrder && gate.returned > returned)) {
      if (early?.reply.kind !== 'taken') return this.#requeue(passage);
      await this.#slots.giveBack(early);
      return this.#requeue(passage, 'gave its slot back');
    }
    if (early.reply.kind === 'taken') await call.callerWaits();
    const slot = await this.#slots.keepFresh(call, early);
    return slot.reply.kind === 'refused'
      ? this.#onRefused(passage, slot, slot.reply)
      : this.#handOver(passage, slot, slot.reply);
  }

  /** The ceiling has no slot: the call's lane sleeps until there is one. */
  async #onRefused(passage: Passage, slot: AskedSlot, { waitMs, isDaily }: Refused): Promise<boolean> {
    const { call } = passage;
    const { rotation, rejection } = this.#to;
    if (isUnderLimits(slot, call)) {
      call.lane.gate.asleep = {
        until: this.#parts.clock.monotonic() + waitMs + rotation.delayMs(call),
        because: isDaily ? 'ceiling_day' : 'ceiling_minute',
      };
    }
    const mayGoOn = await this.#requeue(passage);
    rejection.onCeilingFull(call.request.ceiling.key);
    return mayGoOn;
  }

  /** The ceiling gave a slot: the call gets its lease, unless it ended meanwhile. */
  #handOver(passage: Passage, slot: AskedSlot, taken: Taken): true | Promise<true> {
    const { call, grant } = passage;
    const { registry, edge, rejection } = this.#to;
    const stop = call.reasonToStop(this.#parts.clock.monotonic());
    if (stop !== null || !call.isWaiting) return this.#stop(passage, slot, stop);
    edge.onTaken(call, grant, isUnderLimits(slot, call) ? taken.state : null);
    const { ceiling } = slot;
    call.asksForSlot = false;
    registry.grant(call, new AdmittedLease(this.#parts, rejection, { call, grant, taken, ceiling }));
    return true;
  }

  /** The call ended while the ceiling was asked, or has to: slot and grant go back. */
  async #stop({ call, grant }: Passage, slot: AskedSlot, stop: Ending | null): Promise<true> {
    await this.#slots.giveBack(slot);
    this.#drop(grant);
    if (stop !== null) this.#to.registry.end(call, stop);
    return true;
  }

  /**
   * Returns the ticket to its lane. The lane sleeps until the ceiling has a slot, unless this call had a slot and gave it back.
   * Resolves to false: no grant behind this one may go first.
   */
  async #requeue({ call, grant }: Passage, why: Requeued = 'no slot'): Promise<false> {
    call.asksForSlot = false;
    call.lane.gate.returned += 1;
    // A call that is gone has had its ticket taken out of the lane; returning the grant would put the ticket back for good.
    if (call.isGone || hasMoved(call, grant)) {
      this.#drop(grant);
      return false;
    }
    const { gate } = call.lane;
    const { asleep } = gate;
    this.#to.edge.onRefused(call.lane);
    await this.#parts.limiter.settle(grant, this.#settlementOf(call, why), null);
    if (why === 'no slot') gate.reported = asleep;
    call.positionedUnder = asleep;
    this.#to.registry.moveToJoinedBucket(call);
    return false;
  }

  #settlementOf({ lane, request }: QueuedCall, why: Requeued): Settlement {
    if (why === 'gave its slot back') return { kind: 'returned', sleepMs: 0, because: 'backoff' };
    const now = this.#parts.clock.monotonic();
    const { until, because } = lane.gate.asleep ?? { until: now, because: 'ceiling_minute' };
    return {
      kind: 'returned',
      sleepMs: Math.max(0, until - now),
      because,
      ceiling: request.admission.ceiling,
    };
  }

  /** A grant that no call can use any more goes back whole. */
  #drop(grant: Grant): void {
    const { background, limiter } = this.#parts;
    background(limiter.settle(grant, { kind: 'dropped' }, null));
  }
}

/** True when the call's bucket was joined into another one: the call waits there, a grant of the former bucket is of no use. */
const hasMoved = ({ request }: QueuedCall, { bucket }: Grant): boolean => request.admission.bucket !== bucket;

/** False when the limits were changed since the ceiling was asked: its reply says nothing about the present limits. */
const isUnderLimits = ({ ceiling }: AskedSlot, { request }: QueuedCall): boolean =>
  ceiling.perMinute === request.ceiling.perMinute && ceiling.perDay === request.ceiling.perDay;
