/**
 * Slots of a ceiling that are good when their calls leave. The ceiling counts a slot from the moment it was taken, and
 * promises what arrives upstream: a call that could not leave at once takes its slot again.
 *
 * Owns: how old a slot may be, how slow the ceiling's store is. Refuses to own: what a refusal brings about.
 * Keeps: no call leaves later behind its slot than the windows have to spare (1).
 */
import type { CeilingRef, Place, TakeReply } from '../limiter/ceilings.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';

/** A slot older than this is taken again before its call leaves: less than the windows have to spare. Milliseconds. */
const freshMs = 100;
/** A store that takes longer than this to answer is of no use. Milliseconds. */
const maxLateMs = 2_000;

/** A slot under the ceiling, as it was asked for. */
export interface AskedSlot {
  readonly reply: TakeReply;
  /** The limits that it was asked under. */
  readonly ceiling: CeilingRef;
  /**
   * The call has to leave by then, on the monotonic clock: at most `freshMs` after its reply, and after the time that
   * the slot is counted from, which is not before it was asked for.
   */
  readonly goodUntil: number;
  /** From asking to the reply, milliseconds. */
  readonly tookMs: number;
}

export class CeilingSlots {
  readonly #parts: AdmissionParts;
  /** How long the ceiling's store takes to answer, while that is more than `freshMs`; else 0. */
  #slowMs = 0;

  constructor(parts: AdmissionParts) {
    this.#parts = parts;
  }

  /** Asks the call's ceiling for a slot that is good when its reply comes. */
  async ask(call: QueuedCall): Promise<AskedSlot> {
    const asked = await this.#take(call.request.ceiling, this.#slowMs);
    return this.keepFresh(call, asked);
  }

  /**
   * The slot itself while it is good, else the same one taken again. Where asking alone takes too long, the slot is
   * counted from when its reply is expected.
   */
  async keepFresh(call: QueuedCall, asked: AskedSlot): Promise<AskedSlot> {
    const { clock } = this.#parts;
    let slot = asked;
    while (slot.reply.kind === 'taken' && call.request.ceiling.perMinute !== null) {
      const now = clock.monotonic();
      if (now <= slot.goodUntil || now > call.deadline) break;
      if (slot !== asked && slot.tookMs > freshMs) this.#slowMs = Math.min(slot.tookMs, maxLateMs);
      slot = await this.#take(call.request.ceiling, this.#slowMs, slot.reply.place);
    }
    return slot;
  }

  async giveBack({ ceiling, reply }: AskedSlot): Promise<void> {
    if (reply.kind === 'taken') await this.#parts.ceilings.giveBack(ceiling, reply.place);
  }

  /** Takes a slot (again) for a call that leaves up to `lateMs` after the store counts it. */
  async #take(ceiling: CeilingRef, lateMs: number, again?: Place): Promise<AskedSlot> {
    const { clock, ceilings } = this.#parts;
    const askedAt = clock.monotonic();
    const reply = await ceilings.take(ceiling, again, lateMs);
    const tookMs = clock.monotonic() - askedAt;
    this.#slowMs = tookMs <= freshMs ? 0 : Math.min(this.#slowMs, tookMs);
    return { reply, ceiling, goodUntil: askedAt + Math.min(lateMs, tookMs) + freshMs, tookMs };
  }
}
