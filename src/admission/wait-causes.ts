/**
 * Watches what holds the lanes in which calls wait, so that each call can say what it waited for. A lane is looked at when its first call
 * begins to wait, when something happens to it (a grant, a refusal of the ceiling, its bucket closes), and `lookEveryMs` after the last look.
 *
 * Owns: each lane's `causes` and each call's `heldSoFar`. Does not own: the sums (`wait-causes.policy.ts`).
 * Keeps: a call that is sent at once costs nothing here; a look at a lane costs the same however many calls wait in it.
 */
import type { WaitCause } from '../call.ts';
import type { CancelTimer } from '../clock.ts';
import type { BucketKey } from '../ids.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts } from './ticket.ts';
import type { QueuedCall } from './queued-call.ts';
import { beginsToWait, noted, waitsNoLonger } from './wait-causes.policy.ts';

/** Lanes in which calls wait are looked at this often, milliseconds: a change that no event shows is noted by then. */
const lookEveryMs = 250;

export class WaitCauses {
  readonly #parts: Pick<AdmissionParts, 'clock' | 'limiter'>;
  /** The lanes in which calls are held. */
  readonly #lanes = new Map<BucketKey, Set<LaneView>>();
  #cancelLook: CancelTimer = () => {};

  constructor(parts: Pick<AdmissionParts, 'clock' | 'limiter'>) {
    this.#parts = parts;
  }

  /** The call waits in its lane from now on. A call that is in a wait already goes on with it. */
  begins(call: QueuedCall): void {
    if (isHeld(call)) return;
    const { lane } = call;
    lane.causes.calls += 1;
    if (lane.causes.calls === 1) this.#watch(lane);
    call.heldSoFar = beginsToWait(call.heldSoFar, lane.causes.timeline, this.#now());
  }

  /** The call waits in its lane no longer. */
  ends(call: QueuedCall): void {
    const { heldSoFar, lane } = call;
    if (heldSoFar === null || !isHeld(call)) return;
    call.heldSoFar = waitsNoLonger(heldSoFar, lane.causes.timeline, this.#now());
    lane.causes.calls -= 1;
    if (lane.causes.calls === 0) this.#unwatch(lane);
  }

  /** Something happened to the lane. */
  onEvent(lane: LaneView): void {
    if (lane.causes.calls > 0) this.#look(lane);
  }

  /** The bucket closed. */
  onClosed(bucket: BucketKey): void {
    for (const lane of this.#lanes.get(bucket) ?? []) this.#look(lane);
  }

  #watch(lane: LaneView): void {
    if (this.#lanes.size === 0) this.#lookLater();
    const lanes = this.#lanes.get(lane.bucket);
    if (lanes === undefined) this.#lanes.set(lane.bucket, new Set([lane]));
    else lanes.add(lane);
    this.#look(lane);
  }

  #unwatch(lane: LaneView): void {
    const { causes, bucket } = lane;
    causes.timeline = noted(causes.timeline, null, this.#now());
    const lanes = this.#lanes.get(bucket);
    lanes?.delete(lane);
    if (lanes?.size === 0) this.#lanes.delete(bucket);
    if (this.#lanes.size === 0) this.#cancelLook();
  }

  #lookLater(): void {
    this.#cancelLook = this.#parts.clock.after(lookEveryMs, () => {
      for (const lanes of this.#lanes.values()) for (const lane of lanes) this.#look(lane);
      this.#lookLater();
    });
  }

  #look(lane: LaneView): void {
    const { causes } = lane;
    const now = this.#now();
    const cause = this.#causeOf(lane, now);
    if (cause !== null) causes.timeline = noted(causes.timeline, cause, now);
  }

  /** What holds the first call of the lane for longest; `null` = it is not known now, because its grant is on the way. */
  #causeOf(lane: LaneView, now: number): WaitCause | null {
    const { outside } = lane.causes;
    if (outside !== null && now < outside.until) return outside.cause;
    const heldBy = this.#parts.limiter.forecastFirst(lane.bucket, lane.key)?.heldBy ?? null;
    // Where nothing but the line holds it, it is another lane's turn, or a first response is awaited.
    return heldBy === 'queue' ? 'requests' : heldBy;
  }

  #now(): number {
    return this.#parts.clock.monotonic();
  }
}

const isHeld = ({ heldSoFar }: QueuedCall): boolean => heldSoFar !== null && heldSoFar.from !== null;
