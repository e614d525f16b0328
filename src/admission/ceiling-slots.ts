/**
 * Slots of a ceiling that are good when their calls leave. The ceiling counts a slot from the moment it was taken, and
 * promises what arrives upstream: a call that could not leave at once takes its slot again.
 *
 * Owns: how old a slot may be. Refuses to own: what a refusal brings about.
 * Keeps: no call leaves later behind its slot than the windows have to spare (1).
 */
import type { CeilingRef, CeilingSlot, TakeReply } from '../limiter/ceilings.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import { StoreLatency } from './store-latency.ts';

/** A slot older than this is taken again before its call leaves: less than the windows have to spare. Milliseconds. */
const freshMs = 100;
/** A store whose answers usually take longer is far away: slots are counted from later on. Milliseconds. */
const farMs = freshMs / 2;
/** A store that takes longer than this to answer is of no use. Milliseconds. */
const maxLateMs = 2_000;

/** A slot under the ceiling, as it was asked for. */
export interface AskedSlot {
  readonly reply: TakeReply;
  /** The limits that it was asked under. */
  readonly ceiling: CeilingRef;
  /**
   * The call has to leave by then, on the monotonic clock: at most `freshMs` after the time that the slot is counted from,
   * which is not before it was asked for.
   */
  readonly goodUntil: number;
  /** From asking to the reply, milliseconds. */
  readonly tookMs: number;
  /** It was taken before, and became too old. */
  readonly isRetaken: boolean;
}

export class CeilingSlots {
  readonly #parts: AdmissionParts;
  readonly #latency = new StoreLatency();

  constructor(parts: AdmissionParts) {
    this.#parts = parts;
  }

  /**
   * Asks the call's ceiling for a slot that is good when its reply comes, and, where the store is far away, for as long again:
   * the grants before it may have to ask once more, and would make every slot behind them too old, one after the other.
   */
  async ask(call: QueuedCall): Promise<AskedSlot> {
    const lateMs = this.#isFar ? Math.min(2 * this.#latency.longestMs, maxLateMs) : 0;
    const asked = await this.#take(call.request.ceiling, lateMs);
    const spareMs = this.#isFar ? asked.tookMs : 0;
    const slot = this.#isGood(call, asked, spareMs) ? asked : await this.#takeAgain(call, asked);
    return this.keepFresh(call, slot);
  }

  /** The slot itself while it is good, else the same one taken again. */
  async keepFresh(call: QueuedCall, asked: AskedSlot): Promise<AskedSlot> {
    let slot = asked;
    while (!this.#isGood(call, slot, 0)) slot = await this.#takeAgain(call, slot);
    return slot;
  }

  get #isFar(): boolean {
    return this.#latency.usualMs > farMs;
  }

  #isGood({ request, deadline }: QueuedCall, { reply, goodUntil }: AskedSlot, spareMs: number): boolean {
    if (reply.kind === 'refused' || request.ceiling.perMinute === null) return true;
    const now = this.#parts.clock.monotonic();
    return now + spareMs <= goodUntil || now > deadline;
  }

  /** The slot is counted from when the reply is expected, unless only the last one was late. */
  #takeAgain({ request }: QueuedCall, { reply, tookMs, isRetaken }: AskedSlot): Promise<AskedSlot> {
    const lateMs = this.#isFar || isRetaken ? Math.min(tookMs, maxLateMs) : 0;
    return this.#take(request.ceiling, lateMs, reply.kind === 'taken' ? reply.place : undefined);
  }

  async giveBack({ ceiling, reply }: AskedSlot): Promise<void> {
    if (reply.kind === 'taken') await this.#parts.ceilings.giveBack(ceiling, reply.place);
  }

  /** Takes a slot (again) for a call that leaves up to `lateMs` after the store counts it. */
  async #take(ceiling: CeilingRef, lateMs: number, again?: CeilingSlot): Promise<AskedSlot> {
    const { clock, ceilings } = this.#parts;
    const askedAt = clock.monotonic();
    const reply = await ceilings.take(ceiling, again, lateMs);
    const tookMs = clock.monotonic() - askedAt;
    this.#latency.note(tookMs);
    const isRetaken = again !== undefined;
    return { reply, ceiling, goodUntil: askedAt + lateMs + freshMs, tookMs, isRetaken };
  }
}
