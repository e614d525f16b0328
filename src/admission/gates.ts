/**
 * The gates between the limiter's grants and the ceiling, one per lane: what the charging of a lane's grants must know of
 * those before them. Refuses to own: the charging itself. Keeps: a gate that somebody depends on is not forgotten.
 */
import type { Clock } from '../clock.ts';
import type { Holder } from './holder.ts';

/** Gates unused for this long are forgotten when there are very many. Milliseconds. */
const gateMemoryMs = 120_000;
const veryMany = 10_000;

/** Charging of one lane's grants: in order, and none behind a refused one. */
export interface Gate {
  /** Resolves when the latest grant is charged; false = it went back, nobody behind it may go first. */
  tail: Promise<boolean>;
  /** The ceiling refused a grant: it has no place before that. Monotonic milliseconds. */
  asleepUntil: number;
  /** It is the ceiling of the day that it sleeps for. */
  byDay: boolean;
  /** The ceiling has no place before that; the scheduler knows. */
  fullUntil: number;
  /** The scheduler has been told that the ceiling is nearly used, and not yet that it is not any more. */
  atEdge: boolean;
  usedAt: number;
  /** When a grant of the lane last asked the ceiling for a place, and when one last got it; -Infinity = never. */
  askedAt: number;
  placeAt: number;
  /** Calls that waited in the lane, over all replicas, when somebody was told so. */
  depth: number;
  depthAt: number;
  /** Grants whose costs are being looked into; nothing behind them is charged meanwhile. */
  undecided: number;
  /** Holders of the lane that were sent back and are not granted again. */
  sentBack: number;
}

/** Names a lane: a grant, or the admission of a call. */
interface OfLane {
  readonly bucket: string;
  readonly lane: string;
}

export class Gates {
  readonly #clock: Clock;
  readonly #gates = new Map<string, Gate>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The lane's gate, which is used now. */
  of(place: OfLane): Gate {
    const key = keyOf(place);
    let gate = this.#gates.get(key);
    if (gate === undefined) {
      gate = {
        tail: Promise.resolve(true),
        asleepUntil: 0,
        byDay: false,
        fullUntil: 0,
        atEdge: false,
        usedAt: 0,
        askedAt: -Infinity,
        placeAt: -Infinity,
        depth: 0,
        depthAt: -Infinity,
        undecided: 0,
        sentBack: 0,
      };
      this.#gates.set(key, gate);
      if (this.#gates.size > veryMany) this.#forgetOld();
    }
    gate.usedAt = this.#clock.monotonic();
    return gate;
  }

  /** The lane's gate, if it has one. */
  find(place: OfLane): Gate | undefined {
    return this.#gates.get(keyOf(place));
  }

  /** The gate of the lane that `keyOf` names. */
  named(lane: string): Gate | undefined {
    return this.#gates.get(lane);
  }

  /** True when the call had been sent back; it is not any more. */
  isBack(holder: Holder): boolean {
    if (!holder.sentBack) return false;
    holder.sentBack = false;
    const gate = this.find(holder.entry.admission);
    if (gate !== undefined) gate.sentBack -= 1;
    return true;
  }

  #forgetOld(): void {
    const now = this.#clock.monotonic();
    for (const [key, gate] of this.#gates) {
      if (gate.undecided > 0 || gate.sentBack > 0) continue;
      if (Math.max(gate.asleepUntil, gate.usedAt + gateMemoryMs) < now) this.#gates.delete(key);
    }
  }
}

/** Names a lane among all buckets. */
export const keyOf = ({ bucket, lane }: OfLane): string => `${bucket}/${lane}`;
