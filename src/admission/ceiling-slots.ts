/**
 * Slots of ceilings, and how old one may be. The ceiling counts a slot from the time at which it was taken, but it bounds what arrives
 * upstream: a call that could not leave at once takes its slot again. A store whose replies take long counts them from a later time.
 *
 * Owns: asking the store, also beside what is kept for reservations. Does not own: when a call asks, and what becomes of it
 * (`ceiling-gate.ts`).
 */
import type { CeilingRef, CeilingState } from '../limiter/policy/ceiling.policy.ts';
import type { Slot, TakeReply } from '../limiter/ceiling-store.ts';
import type { KeptSlots } from '../limiter/limiter.ts';
import { useOf } from './lanes.ts';
import type { QueuedCall } from './queued-call.ts';
import type { AdmissionParts } from './ticket.ts';

/** A slot older than this is taken again before its call leaves: less than the windows have to spare. Milliseconds. */
const freshMs = 100;
/** A store whose last reply took longer than this is far: its slots are counted from a later time. Milliseconds. */
const farMs = freshMs / 2;
/** A call of a far store may leave so many replies after it has asked: calls before it may have to ask again. */
const farReplies = 3;
/** Slots are counted from at most this much later, however slow the store is. Milliseconds. */
const maxLateMs = 2_000;

/** The reply of a ceiling that was asked for a slot. */
export type SlotReply = TakenSlot | RefusedSlot;

interface AskedCeiling {
  /** The ceiling, with the limits under which it was asked, and their tag: a reload may have changed them since. */
  readonly ceiling: CeilingRef;
  readonly ceilingTag: string;
  /**
   * A call with this slot has to leave by then, on the monotonic clock: at most `freshMs` after the time that the slot is counted
   * from, which is not before it was asked for.
   */
  readonly goodUntil: number;
}

export interface TakenSlot extends AskedCeiling {
  readonly reply: Extract<TakeReply, { kind: 'taken' }>;
}

export interface RefusedSlot extends AskedCeiling {
  readonly reply: Extract<TakeReply, { kind: 'refused' }>;
  /** The ceiling has slots, but these are kept for reservations of others; `null` = that is not why it refused. */
  readonly keptForOthers: KeptSlots | null;
}

export const isTaken = (slot: SlotReply): slot is TakenSlot => slot.reply.kind === 'taken';

/** A ceiling with so many slots more: its client is told of the workspace's ceiling, not of the part that the call may use. */
export const withSlots = (state: CeilingState | null, more: number): CeilingState | null =>
  state === null ? null : { ...state, limit: state.limit + more, remaining: state.remaining + more };

export class CeilingSlots {
  readonly #parts: AdmissionParts;
  /** How much later than it asks a call of a far store may leave; 0 = the store is near. Milliseconds. */
  #farLateMs = 0;

  constructor(parts: AdmissionParts) {
    this.#parts = parts;
  }

  /**
   * The reply while its slot is fresh enough, as it is for most calls, else the reply to asking again. A refusal, the slot of a ceiling without
   * a minute, and that of a call that is not sent any more are not taken again.
   */
  async fresh(call: QueuedCall, asked: SlotReply): Promise<SlotReply> {
    const { clock } = this.#parts;
    let slot = asked;
    while (isTaken(slot) && slot.ceiling.perMinute !== null && !call.isGone) {
      const now = clock.monotonic();
      if (now <= slot.goodUntil || now > call.deadline) break;
      slot = await this.ask(call, slot);
    }
    return slot;
  }

  async giveBack({ ceiling, reply }: SlotReply): Promise<void> {
    if (reply.kind === 'taken') await this.#parts.ceilings.giveSlotBack(ceiling, reply.slot);
  }

  /** Asks the call's ceiling for a slot, in the place of an earlier one; a far store for one of a call that leaves later. */
  async ask(call: QueuedCall, earlier?: SlotReply): Promise<SlotReply> {
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
    const asked = { ceiling, ceilingTag, goodUntil: askedAt + lateMs + freshMs };
    return reply.kind === 'taken'
      ? { ...asked, reply }
      : { ...asked, reply, keptForOthers: reply.isDaily ? null : kept };
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
