/**
 * The edge of a ceiling: while few slots are left, every one that is taken is reported to the scheduler, which then lets no
 * more grants of the lane be outstanding than there are slots; away from the edge it must stop counting.
 *
 * Owns: when a ceiling counts as nearly used, and each lane's `edge`. Does not own: taking slots.
 * Keeps: no later call slips into the last slot before an earlier one (4).
 */
import { ceilingWindowMs, type CeilingRef, type CeilingState } from '../limiter/ceilings.ts';
import type { Grant } from '../limiter/limiter.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';

/** The number of free slots from which on a ceiling counts as nearly used. */
export const edgeOf = (limit: number): number => Math.max(16, Math.ceil(limit / 10));

export class CeilingEdge {
  readonly #parts: AdmissionParts;
  readonly #rotation: LaneRotation;

  constructor(parts: AdmissionParts, rotation: LaneRotation) {
    this.#parts = parts;
    this.#rotation = rotation;
  }

  /** The granted call took a slot; `state` is what is left, `null` = there is no minute ceiling, or it is not known. */
  onTaken(call: QueuedCall, grant: Grant, state: CeilingState | null): void {
    const { clock, limiter, background } = this.#parts;
    const { edge } = call.lane;
    const now = clock.monotonic();
    const mayBeCounted = edge.isReported || isUnknown(call.lane, call.request.ceiling, now);
    edge.takenAt = now;
    this.#rotation.onServed(call.lane);
    const isAtEdge = state !== null && state.remaining <= edgeOf(state.limit);
    if (!isAtEdge && !mayBeCounted) return;
    edge.isReported = isAtEdge;
    if (!isAtEdge) return background(limiter.charged(grant, null));
    const { remaining: slots, nextSlotMs: freeInMs } = state;
    if (slots <= 0) edge.fullUntil = now + freeInMs;
    const nextSlotMs = slots <= 0 ? freeInMs + this.#rotation.delayMs(call) : freeInMs;
    const { ceilingTag } = call.request.admission;
    background(limiter.charged(grant, { slots, nextSlotMs, ceilingTag }));
  }

  /** The ceiling had no slot for a grant: the limiter narrows the lane when it gets the grant back. */
  onRefused({ edge }: LaneView): void {
    edge.isReported = true;
  }
}

/**
 * True when the scheduler may be counting slots because of another replica's report: this replica has taken no slot for the
 * lane yet, or none within the last window of the ceiling, so it cannot know.
 */
function isUnknown({ edge: { takenAt } }: LaneView, { perMinute, perDay }: CeilingRef, now: number): boolean {
  if (takenAt === null) return true;
  return (perMinute !== null || perDay !== null) && now - takenAt > ceilingWindowMs;
}
