/**
 * The gates between the limiter's grants and the ceiling, one per lane: what the charging of a lane's grants must know of
 * those before them. Refuses to own: the charging itself. Keeps: a gate that somebody depends on is not forgotten.
 */
import type { Clock } from '../clock.ts';

/** Gates unused for this long are forgotten when there are very many. Milliseconds. */
const gateMemoryMs = 120_000;
const veryMany = 10_000;

/** Until when a ceiling has no slot, and which. */
export interface CeilingSleep {
  /** Monotonic milliseconds. */
  readonly until: number;
  readonly because: 'ceiling_minute' | 'ceiling_day';
}

/** Charging of one lane's grants: in order, and none behind a refused one. */
export interface Gate {
  /** The limits for which the rest of this was found out, as one word. */
  ceiling: string;
  /** Resolves when the latest grant is charged; false = it went back, nobody behind it may go first. */
  tail: Promise<boolean>;
  /** The ceiling refused a grant; `null` = it has not, or it may have a slot again. */
  asleep: CeilingSleep | null;
  /** The ceiling has no slot before that, monotonic milliseconds; the scheduler knows. `null` = it may have one. */
  fullUntil: number | null;
  /** The scheduler has been told that the ceiling is nearly used, and not yet that it is not any more. */
  atEdge: boolean;
  usedAt: number;
  /** When a grant of the lane last asked the ceiling for a slot, and when one last got it; `null` = never. */
  askedAt: number | null;
  slotAt: number | null;
  /** Calls that waited in the lane on other replicas when a newcomer was last told of its position; `null` = never. */
  elsewhere: { readonly calls: number; readonly at: number } | null;
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
        ceiling: '',
        tail: Promise.resolve(true),
        asleep: null,
        fullUntil: null,
        atEdge: false,
        usedAt: 0,
        askedAt: null,
        slotAt: null,
        elsewhere: null,
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

  /** What was found out under other limits of the ceiling does not hold; the scheduler may be told of slots again. */
  underLimits(place: OfLane, ceiling: string): Gate {
    const gate = this.of(place);
    if (gate.ceiling === ceiling) return gate;
    if (gate.ceiling !== '') gate.atEdge = true;
    gate.ceiling = ceiling;
    gate.asleep = null;
    gate.fullUntil = null;
    return gate;
  }

  #forgetOld(): void {
    const now = this.#clock.monotonic();
    for (const [key, gate] of this.#gates) {
      if (Math.max(gate.asleep?.until ?? 0, gate.usedAt + gateMemoryMs) < now) this.#gates.delete(key);
    }
  }
}

/** Names a lane among all buckets. */
export const keyOf = ({ bucket, lane }: OfLane): string => `${bucket}/${lane}`;

/** Milliseconds for which the ceiling has no slot yet, and which ceiling; `null` = it may have one. */
export function fullFor(
  gate: Gate,
  now: number,
): { readonly ms: number; readonly because: CeilingSleep['because'] } | null {
  const asleepMs = gate.asleep === null ? 0 : gate.asleep.until - now;
  const fullMs = gate.fullUntil === null ? 0 : gate.fullUntil - now;
  if (asleepMs <= 0 && fullMs <= 0) return null;
  return asleepMs >= fullMs && gate.asleep !== null
    ? { ms: asleepMs, because: gate.asleep.because }
    : { ms: fullMs, because: 'ceiling_minute' };
}
