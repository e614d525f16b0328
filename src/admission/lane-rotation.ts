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
/** The lanes under a ceiling ask again for slots that came back after so long, all at once; very many of them later. Milliseconds. */
const restMs = 20;
const restPerLaneMs = 0.5;

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
    for (const { lane } of this.#rivalsOf(own)) if (ahead < maxAhead && compare(lane, own) < 0) ahead += 1;
    return ahead * serviceMs;
  }

  /**
   * Tells positions under the ceiling of this lane (1 = next) with `ahead` calls of the same lane before: each other lane that waits for
   * the ceiling gets as many slots meanwhile, and one more if it is before the lane in the rotation. Of a lane that does not wait yet
   * those are before it that have gone without a slot for as long.
   *
   * Very many calls of very many lanes are told: a position takes no look at each lane.
   */
  turns(lane: LaneView): (own: LaneView, ahead: number) => number {
    const depths = new Map<LaneView, number>();
    /** Slots that others take before a background call, which takes no turn with them. */
    let reserved = 0;
    for (const { lane: other, depth } of this.#rivalsOf(lane)) {
      if (isBackground(lane.key) && !isBackground(other.key)) reserved += depth;
      else depths.set(other, depth);
    }
    /** By calls ahead: the slots that all lanes get meanwhile, and the lanes that want more, in order. */
    const rounds = [{ slots: 0, more: inOrder(depths.keys()) }];
    return (own, ahead) => {
      for (let at = rounds.length; at <= ahead; at += 1) {
        const { slots = 0, more = [] } = rounds[at - 1] ?? {};
        const still = more.filter((other) => (depths.get(other) ?? 0) > at);
        rounds.push({ slots: slots + more.length, more: still });
      }
      const { slots = 0, more = [] } = rounds[ahead] ?? {};
      const ofOwn = Math.min(depths.get(own) ?? 0, ahead);
      return ahead + 1 + reserved + slots - ofOwn + countBefore(more, own);
    };
  }

  /**
   * A slot of the ceiling came back from a call that was not sent, here or at another replica: the lanes that wait for one ask again, also
   * in other buckets than that of the call, the one that has gone longest without a slot first.
   */
  onSlotBack(key: CeilingKey): void {
    if (this.#due.has(key)) return;
    const { clock, limiter, detached } = this.#parts;
    this.#due.add(key);
    const lanes = Array.from(this.#registry.lanesUnder(key)).length;
    clock.after(Math.max(restMs, lanes * restPerLaneMs), () => {
      this.#due.delete(key);
      for (const lane of inOrder(this.#registry.lanesUnder(key)))
        if (lane.waiting > 0) detached(limiter.wake(lane.bucket, lane.key));
    });
  }

  /** Lanes that wait for the lane's ceiling, itself among them, and how many calls wait there. Those of the background are rivals of each other only. */
  *#rivalsOf(own: LaneView): Generator<{ readonly lane: LaneView; readonly depth: number }> {
    for (const lane of this.#registry.lanesUnder(own.ceiling)) {
      if (isBackground(lane.key) && !isBackground(own.key)) continue;
      const full = this.#parts.limiter.laneCeiling(lane.bucket, lane.key);
      if (full !== null) yield { lane, depth: Math.max(lane.waiting, full.waiting) };
    }
  }
}

/** The one that has gone longest without a slot is first; those of the background come last. */
function compare(one: LaneView, other: LaneView): number {
  if (isBackground(one.key) !== isBackground(other.key)) return isBackground(other.key) ? -1 : 1;
  const apart = (one.servedAt ?? -Infinity) - (other.servedAt ?? -Infinity);
  // Neither has had a slot, or both in the same moment.
  if (apart === 0 || Number.isNaN(apart))
    return one.bucket < other.bucket ? -1 : Number(one.bucket > other.bucket);
  return apart;
}

const inOrder = (lanes: Iterable<LaneView>): readonly LaneView[] => [...lanes].sort(compare);

/** How many of these lanes, which are in order, are before a lane. */
function countBefore(lanes: readonly LaneView[], own: LaneView): number {
  let [from, to] = [0, lanes.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    const other = lanes[middle];
    if (other !== undefined && compare(other, own) < 0) from = middle + 1;
    else to = middle;
  }
  return from;
}
