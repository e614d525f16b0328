/**
 * Slots of a ceiling that are still valid when their calls leave. The ceiling counts a slot from the time at which it was
 * taken, but it bounds what arrives upstream: a call that could not leave at once takes its slot again.
 *
 * Owns: how old a slot may be. Does not own: what a refusal brings about.
 * Keeps: no call leaves later behind its slot than the windows have to spare (1).
 */
import { Refusal } from '../errors.ts';
import type { CeilingRef } from '../limiter/policy/ceiling.policy.ts';
import type { Ceilings, Slot, TakeReply } from '../limiter/ceiling-store.ts';
import type { KeptSlots } from '../limiter/limiter.ts';
import { useOf } from './lanes.ts';
import type { QueuedCall } from './queued-call.ts';
import type { AdmissionParts } from './ticket.ts';

/** A slot older than this is taken again before its call leaves: less than the windows have to spare. Milliseconds. */
const freshMs = 100;
/** A store whose replies usually take longer than this is distant: its slots are counted from a later time. Milliseconds. */
const farMs = freshMs / 2;
/** Slots are counted from at most this much later, however slow the store is. Milliseconds. */
const maxLateMs = 2_000;

/** The reply of a ceiling that was asked for a slot. */
export type SlotReply = TakenSlot | RefusedSlot;

/** What follows from when and how a ceiling was asked. */
interface Asked {
  /** The ceiling, with the limits under which it was asked. */
  readonly ceiling: CeilingRef;
  /**
   * A call with this slot has to leave by then, on the monotonic clock: at most `freshMs` after the time that the slot is counted
   * from, which is not before it was asked for.
   */
  readonly goodUntil: number;
  /** When the ceiling was asked, monotonic milliseconds. */
  readonly askedAt: number;
  /** Time from the request to the reply, milliseconds. */
  readonly tookMs: number;
  /** The ceiling has slots, but these are kept for reservations of others; `null` = that is not why it refused. */
  readonly keptForOthers: KeptSlots | null;
  /** True when an earlier slot of the call became too old, and the ceiling was asked for another one instead. */
  readonly isRetaken: boolean;
}

export interface TakenSlot extends Asked {
  readonly reply: Extract<TakeReply, { kind: 'taken' }>;
}

export interface RefusedSlot extends Asked {
  readonly reply: Extract<TakeReply, { kind: 'refused' }>;
}

/** The number of free slots from which on a ceiling counts as nearly used. */
export const edgeOf = (limit: number): number => Math.max(16, Math.ceil(limit / 10));

export const isTaken = (slotReply: SlotReply): slotReply is TakenSlot => slotReply.reply.kind === 'taken';

/** How many of the last responses count. */
const remembered = 8;

/**
 * How long a store takes to answer, by its last responses. One slow response is a stall, also of this process; a store is slow
 * when most of its responses are.
 */
class StoreLatency {
  readonly #lastMs: number[] = [];

  note(tookMs: number): void {
    this.#lastMs.push(tookMs);
    if (this.#lastMs.length > remembered) this.#lastMs.shift();
  }

  /** True when more than half of the last responses took longer than this. */
  isUsuallyOver(ms: number): boolean {
    let over = 0;
    for (const tookMs of this.#lastMs) if (tookMs > ms) over += 1;
    return over * 2 > this.#lastMs.length;
  }

  /** The longest of the last responses; 0 before the first one. Milliseconds. */
  get maxMs(): number {
    return Math.max(0, ...this.#lastMs);
  }
}

export class CeilingSlots {
  readonly #parts: AdmissionParts;
  readonly #latency = new StoreLatency();

  constructor(parts: AdmissionParts) {
    this.#parts = parts;
  }

  /**
   * Asks the call's ceiling for a slot that is valid when the reply comes and, where the store is distant, for one round trip
   * more: earlier grants may have to ask again, and every slot behind them would become too old during that round trip.
   */
  async ask(call: QueuedCall): Promise<SlotReply> {
    const lateMs = this.#isFar ? this.#farLateMs : 0;
    const asked = await this.#take(call, lateMs);
    const spareMs = this.#isFar ? asked.tookMs : 0;
    const slotReply = this.#isGood(call, asked, spareMs) ? asked : await this.#takeAgain(call, asked);
    return this.keepFresh(call, slotReply);
  }

  /**
   * Resolves with the ceiling's reply when `before` resolves, which is when the grants before this one have theirs. Slots of a distant
   * store are renewed ahead of time and concurrently: renewing one only when its call is next would cost a round trip, during
   * which the slots of all calls behind it become too old.
   */
  async keepUntil(call: QueuedCall, asked: Promise<SlotReply>, before: Promise<unknown>): Promise<SlotReply> {
    const { clock } = this.#parts;
    let slotReply = await asked;
    if (!this.#isFar) {
      await before;
      return slotReply;
    }
    let isNext = false;
    const gone = before.then(() => {
      isNext = true;
    });
    while (!isNext && this.#isFar && !call.isGone && ages(call, slotReply, clock.monotonic())) {
      const renewAt = slotReply.goodUntil - this.#latency.maxMs;
      await this.#firstOf(gone, renewAt - clock.monotonic());
      if (!isNext && !call.isGone) slotReply = await this.#renew(call, slotReply);
    }
    await gone;
    return slotReply;
  }

  /** Resolves with `event`, at the latest after `ms` milliseconds. */
  async #firstOf(event: Promise<void>, ms: number): Promise<void> {
    let cancel = (): void => {};
    const passed = new Promise<void>((resolve) => {
      cancel = this.#parts.clock.after(Math.max(0, ms), resolve);
    });
    await Promise.race([event, passed]);
    cancel();
  }

  /** Returns the reply while its slot is fresh enough, as it is for most calls, else the reply to asking again. A refusal stays. */
  keepFresh(call: QueuedCall, asked: SlotReply): SlotReply | Promise<SlotReply> {
    return this.#isGood(call, asked, 0) ? asked : this.#freshFor(call, asked);
  }

  async #freshFor(call: QueuedCall, old: SlotReply): Promise<SlotReply> {
    let slotReply = old;
    do slotReply = await this.#takeAgain(call, slotReply);
    while (!this.#isGood(call, slotReply, 0));
    return slotReply;
  }

  get #isFar(): boolean {
    return this.#latency.isUsuallyOver(farMs);
  }

  #isGood(call: QueuedCall, slotReply: SlotReply, spareMs: number): boolean {
    const now = this.#parts.clock.monotonic();
    return now + spareMs <= slotReply.goodUntil || !ages(call, slotReply, now);
  }

  /** Takes the slot again, so that it is valid for one round trip after the reply. */
  #renew(call: QueuedCall, { reply }: SlotReply): Promise<SlotReply> {
    return this.#take(call, this.#farLateMs, reply.kind === 'taken' ? reply.slot : undefined);
  }

  get #farLateMs(): number {
    return Math.min(2 * this.#latency.maxMs, maxLateMs);
  }

  /** The slot is counted from when the reply is expected, unless only the last one was late. */
  #takeAgain(call: QueuedCall, { reply, tookMs, isRetaken }: SlotReply): Promise<SlotReply> {
    const lateMs = this.#isFar || isRetaken ? Math.min(tookMs, maxLateMs) : 0;
    return this.#take(call, lateMs, reply.kind === 'taken' ? reply.slot : undefined);
  }

  async giveSlotBack({ ceiling, reply }: SlotReply): Promise<void> {
    if (reply.kind === 'taken') await this.#parts.ceilings.giveSlotBack(ceiling, reply.slot);
  }

  /** Takes a slot (again) for a call that leaves up to `lateMs` after the store counts it. */
  async #take(
    { request: { admission }, ceiling, lane }: QueuedCall,
    lateMs: number,
    again?: Slot,
  ): Promise<SlotReply> {
    const { clock, ceilings, limiter } = this.#parts;
    const askedAt = clock.monotonic();
    const kept = limiter.keptSlots(admission.bucket, ceiling.key, admission.ticket);
    const reply =
      kept === null
        ? await ceilings.take(ceiling, again, lateMs)
        : await takeBeside(kept, { ceilings, ceiling, again, lateMs });
    const keptForOthers = reply.kind === 'refused' && !reply.isDaily ? kept : null;
    const now = clock.monotonic();
    const tookMs = now - askedAt;
    lane.ceilingUse = useOf(ceiling, reply, now);
    this.#latency.note(tookMs);
    const isRetaken = again !== undefined;
    const goodUntil = askedAt + lateMs + freshMs;
    const asked = { ceiling, goodUntil, askedAt, tookMs, keptForOthers, isRetaken };
    return reply.kind === 'taken' ? { ...asked, reply } : { ...asked, reply };
  }
}

/** Takes a slot only where as many are left as are kept for reservations. */
async function takeBeside(
  { count, forMs }: KeptSlots,
  asked: {
    readonly ceilings: Ceilings;
    readonly ceiling: CeilingRef;
    readonly again: Slot | undefined;
    readonly lateMs: number;
  },
): Promise<TakeReply> {
  const { ceilings, ceiling, again, lateMs } = asked;
  const { key, perMinute, perDay } = ceiling;
  const less = (limit: number | null): number | null => (limit === null ? null : limit - count);
  const others = { key, perMinute: less(perMinute), perDay: less(perDay) };
  if (Math.min(others.perMinute ?? 1, others.perDay ?? 1) < 1) {
    if (again !== undefined) await ceilings.giveSlotBack(ceiling, again);
    return { kind: 'refused', waitMs: forMs, isDaily: false, state: await ceilings.state(ceiling) };
  }
  const reply = await ceilings.take(others, again, lateMs);
  const state =
    reply.state === null || perMinute === null
      ? null
      : { ...reply.state, limit: perMinute, remaining: reply.state.remaining + count };
  return reply.kind === 'taken'
    ? { ...reply, state }
    : { ...reply, state, waitMs: Math.min(reply.waitMs, forMs) };
}

/** A refusal, the slot of a ceiling without a minute, and that of a call whose wait is over are not taken again. */
const ages = ({ request, deadline }: QueuedCall, { reply }: SlotReply, now: number): boolean =>
  reply.kind === 'taken' && request.ceiling.perMinute !== null && now <= deadline;

// Slots that are asked for ahead of the grant

// A lone call asks for its slot together with its grant, where it will probably get both: it then waits for one round trip to the store
// instead of two. At most one call of a lane has asked ahead, and none near the end of a ceiling, where the slot might be another
// call's (4); a slot that was taken ahead and that no grant follows goes back.

/** For how long it counts that a ceiling was far from its end. Milliseconds. */
const observedMs = 10_000;

export class SlotsAhead {
  readonly #parts: AdmissionParts;
  readonly #slots: CeilingSlots;

  constructor(parts: AdmissionParts, slots: CeilingSlots) {
    this.#parts = parts;
    this.#slots = slots;
  }

  /** Asks for the slot of an arriving call, which is about to ask for its grant; `null` = it asks when it is granted. */
  ask(call: QueuedCall): Promise<SlotReply> | null {
    const { lane } = call;
    const { askingAhead } = lane;
    // For whoever came back for a reservation slots are kept, which is known with the grant.
    if (call.request.admission.reservation !== undefined) return null;
    if (askingAhead.kind !== 'likely' || lane.waiting > 0) return null;
    const { clock, limiter } = this.#parts;
    if (clock.monotonic() - askingAhead.since > observedMs) return null;
    if (limiter.laneCeiling(lane.bucket, lane.key) !== null) return null;
    lane.askingAhead = { kind: 'asked' };
    const asked = this.#slots.ask(call);
    // Whoever uses the reply notices that the store failed, which may be later than the failure.
    asked.catch(() => {});
    return asked;
  }

  /** The bucket granted a call that had asked ahead: it goes on with the slot's reply. */
  onGranted({ lane }: QueuedCall): void {
    lane.askingAhead = { kind: 'unlikely' };
  }

  /** The call has its slot: where the bucket granted it at once and many slots are left, the next call may ask ahead. */
  onHandedOver(call: QueuedCall, { reply: { state, dayLeft } }: TakenSlot): void {
    const { lane, request } = call;
    if (lane.askingAhead.kind === 'asked' || !call.isGrantedAtOnce) return;
    const { perDay } = request.ceiling;
    const isMinuteAmple = state === null || state.remaining > edgeOf(state.limit);
    const isDayAmple = dayLeft === null || perDay === null || dayLeft > edgeOf(perDay);
    lane.askingAhead =
      isMinuteAmple && isDayAmple
        ? { kind: 'likely', since: this.#parts.clock.monotonic() }
        : { kind: 'unlikely' };
  }

  /** No grant follows: the slot goes back, if one was taken. Resolves when it is back. Rejects only with what is a bug. */
  async giveBack({ lane }: QueuedCall, asked: Promise<SlotReply>): Promise<void> {
    lane.askingAhead = { kind: 'unlikely' };
    const slotReply = await asked.catch(noSlot);
    if (slotReply !== null) await this.#slots.giveSlotBack(slotReply);
  }
}

/** A store that is unavailable gave no slot. The call is not refused for it here: it may wait until the store is back. */
function noSlot(failure: unknown): null {
  if (failure instanceof Refusal) return null;
  throw failure;
}
