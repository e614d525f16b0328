/**
 * Lanes of one workspace that wait for slots of the same ceiling are served in rotation: the one that has gone longest
 * without a slot is first. Owns: how long a lane lets others go first, which position under the ceiling follows for a
 * call, and who asks again when a slot comes back. Does not own: order inside a lane (the limiter), who waits (`queued-call.ts`).
 * Keeps: no lane is passed over for ever; a lane alone waits for no other; a slot that comes back is left over only if no lane can use it
 * (6).
 *
 * What other replicas gave a lane is not known here, so over replicas the rotation is fair on average only.
 */
import { type CeilingKey, isBackground } from '../ids.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts } from './ticket.ts';
import type { WaitRegistry } from './queued-call.ts';

/** How long a lane that is next needs to take its slot, milliseconds: each lane ahead delays a lane's waking by as much. */
const serviceMs = 10;
/** How many other lanes a lane lets go first at most. */
const maxAhead = 8;
/** The lanes under a ceiling ask again for slots that came back after so long, all at once. Milliseconds. */
const restMs = 20;

export class LaneRotation {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  /** Ceilings whose lanes are about to ask again. */
  readonly #due = new Set<CeilingKey>();

  constructor(parts: AdmissionParts, registry: WaitRegistry) {
    this.#parts = parts;
    this.#registry = registry;
  }

  /** How long after a slot has come free the lane wakes, milliseconds. */
  delayMs(own: LaneView): number {
    let ahead = 0;
    for (const other of this.#rivalsOf(own)) {
      if (isFirst(other, own)) ahead += 1;
      if (ahead >= maxAhead) break;
    }
    return ahead * serviceMs;
  }

  /**
   * Tells positions under the ceiling of this lane (1 = next) with `ahead` calls of the same lane before: each other lane that waits for
   * the ceiling gets as many slots meanwhile, and one more if it is before the lane in the rotation. Of a lane that does not wait yet
   * those are before it that have gone without a slot for as long.
   */
  turns(lane: LaneView): (own: LaneView, ahead: number) => number {
    const rivals = Array.from(this.#rivalsOf(lane), (other) => {
      const elsewhere = Math.max(0, (this.#ceilingOf(other)?.waiting ?? 0) - other.waiting);
      return { other, depth: other.waiting + elsewhere };
    });
    return (own, ahead) =>
      rivals.reduce((position, { other, depth }) => {
        if (other === own) return position;
        const mayTakeReserved = isBackground(own.key) && !isBackground(other.key);
        const slots = mayTakeReserved ? depth : Math.min(depth, isFirst(other, own) ? ahead + 1 : ahead);
        return position + slots;
      }, ahead + 1);
  }

  /**
   * A slot of the ceiling came back from a call that was not sent, here or at another replica: the lanes that wait for one ask again, also
   * in other buckets than that of the call, the one that has gone longest without a slot first.
   */
  onSlotBack(key: CeilingKey): void {
    if (this.#due.has(key)) return;
    const { clock, limiter, detached } = this.#parts;
    this.#due.add(key);
    clock.after(restMs, () => {
      this.#due.delete(key);
      for (const lane of this.#inOrder(this.#registry.lanesUnder(key)))
        if (lane.waiting > 0) detached(limiter.wake(lane.bucket, lane.key));
    });
  }

  #inOrder(lanes: Iterable<LaneView>): readonly LaneView[] {
    return [...lanes].sort((one, other) => (isFirst(one, other) ? -1 : isFirst(other, one) ? 1 : 0));
  }

  /** Lanes that wait for the lane's ceiling, itself among them. Those of the background are rivals of each other only. */
  *#rivalsOf(own: LaneView): Generator<LaneView> {
    for (const lane of this.#registry.lanesUnder(own.ceiling)) {
      if (isBackground(lane.key) && !isBackground(own.key)) continue;
      if (this.#ceilingOf(lane) !== null) yield lane;
    }
  }

  #ceilingOf({ bucket, key }: LaneView) {
    return this.#parts.limiter.laneCeiling(bucket, key);
  }
}

/** True when `one` has gone without a slot for longer than `other`; those of the background come last. */
function isFirst(one: LaneView, other: LaneView): boolean {
  if (isBackground(one.key) !== isBackground(other.key)) return isBackground(other.key);
  const [own, others] = [one.servedAt ?? -Infinity, other.servedAt ?? -Infinity];
  return own === others ? one.bucket < other.bucket : own < others;
}
