/**
 * A lone call asks for its slot of the ceiling together with its grant, where it will probably get both: it then waits for one round
 * trip to the store instead of two (ADR 27).
 *
 * Owns: which call asks ahead of its grant, and each lane's `askingAhead`. Does not own: taking slots and giving them back
 * (`ceiling-slots.ts`), what follows from the ceiling's reply (`ceiling-gate.ts`).
 * Keeps: at most one call of a lane has asked ahead, and none near the end of a ceiling, where the slot might be another call's (4); a
 * slot that was taken ahead and that no grant follows goes back.
 */
import { Refusal } from '../errors.ts';
import { edgeOf, type CeilingSlots, type SlotReply, type TakenSlot } from './ceiling-slots.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';

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
