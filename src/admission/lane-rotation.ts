/**
 * Lanes of one workspace that wait for slots of the same ceiling are served in rotation: the one that has gone longest
 * without a slot is first. Owns: how long a lane lets others go first, which position under the ceiling follows for a
 * call, and each lane's `rotation`. Does not own: order inside a lane (the limiter), who waits (`wait-registry.ts`).
 * Keeps: no lane is passed over for ever; a lane alone waits for no other.
 *
 * What other replicas gave a lane is not known here, so over replicas the rotation is fair on average only.
 */
import type { Clock } from '../clock.ts';
import { type CeilingKey, isBackground } from '../ids.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import type { LaneView } from './lanes.ts';
import type { QueuedCall } from './queued-call.ts';
import type { AdmissionParts } from './ticket.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** How long a lane that is next needs to take its slot, milliseconds: each lane ahead delays a lane's waking by as much. */
const serviceMs = 10;
/** How many other lanes a lane lets go first at most. */
const maxAhead = 8;
/** For how long the last observation of a lane counts: that it waits for the ceiling, how many calls wait in it. Milliseconds. */
const retentionMs = 4_000;

export class LaneRotation {
  readonly #clock: Clock;
  readonly #limiter: Limiter;
  readonly #registry: WaitRegistry;

  constructor({ clock, limiter }: AdmissionParts, registry: WaitRegistry) {
    this.#clock = clock;
    this.#limiter = limiter;
    this.#registry = registry;
  }

  /** A grant of the lane asks the ceiling for a slot. */
  onAsked({ rotation }: LaneView): void {
    rotation.askedAt = this.#clock.monotonic();
  }

  /** A call of the lane took a slot. */
  onServed({ rotation }: LaneView): void {
    rotation.servedAt = this.#clock.monotonic();
  }

  /** The limiter said how many calls go before an arriving call in its lane, over all replicas. */
  onPosition({ lane }: QueuedCall, ahead: number): void {
    lane.rotation.elsewhere = {
      calls: Math.max(0, ahead - lane.waiting),
      at: this.#clock.monotonic(),
    };
  }

  /** How long after a slot has come free this call's lane wakes, milliseconds. */
  delayMs(call: QueuedCall): number {
    let ahead = 0;
    // A background call that is due waits for nobody.
    if (call.mayTakeAll) return 0;
    for (const other of this.#rivalsOf(call)) {
      if (isFirst(other, call.lane)) ahead += 1;
      if (ahead >= maxAhead) break;
    }
    return ahead * serviceMs;
  }

  /**
   * The call's position under its ceiling (1 = next) with `ahead` calls of its lane before it: each other lane that waits for
   * the ceiling gets as many slots meanwhile, and one more if its last slot is longer ago than that of the call's lane. Of lanes that
   * had none yet, those that waited before it count as such.
   */
  positionOf(call: Pick<QueuedCall, 'lane' | 'request'>, ahead: number): number {
    const { lane: own } = call;
    let position = ahead + 1;
    let isBefore = true;
    for (const other of this.#rivalsOf(call)) {
      if (other === own) isBefore = false;
      else if (isBackground(own.key) && !isBackground(other.key)) position += this.#depthOf(other);
      else {
        const isNext = isBefore ? !isFirst(own, other) : isFirst(other, own);
        position += Math.min(this.#depthOf(other), isNext ? ahead + 1 : ahead);
      }
    }
    return position;
  }

  /**
   * Tells each of the calls under one ceiling its position there, as {@link positionOf} does for a single one, in one pass however many
   * lanes they are in. `calls`: in order within each lane. `stays` says whether a call keeps its position; if not, the next call of its
   * lane gets it.
   */
  forEachPosition(
    calls: readonly QueuedCall[],
    stays: (call: QueuedCall, position: number) => boolean,
  ): void {
    const [first] = calls;
    if (first === undefined) return;
    const lines = Map.groupBy(calls, ({ lane }) => lane);
    const rivals = new Set(this.#rivalsOf(first));
    let turns = this.inOrder(new Set([...rivals, ...lines.keys()])).map((lane) => {
      const line = lines.get(lane) ?? [];
      const isRival = rivals.has(lane);
      // The calls of a lane that is no rival count for those of their own lane only.
      return { line, next: 0, isRival, slots: isRival ? Math.max(line.length, this.#depthOf(lane)) : 0 };
    });
    let taken = 0;
    for (let round = 0; turns.some(({ line, next }) => next < line.length); round += 1) {
      for (const turn of turns) {
        const position = taken + 1 + (turn.isRival ? 0 : round);
        for (let call = turn.line[turn.next]; call !== undefined; call = turn.line[turn.next]) {
          turn.next += 1;
          if (stays(call, position)) break;
          turn.slots -= 1;
        }
        if (turn.slots > 0) taken += 1;
        turn.slots -= 1;
      }
      turns = turns.filter(({ line, next, slots }) => next < line.length || slots > 0);
    }
  }

  /** The lanes by their last slots: the one that has gone longest without a slot is first. */
  inOrder(lanes: Iterable<LaneView>): readonly LaneView[] {
    return [...lanes].sort((one, other) => (isFirst(one, other) ? -1 : isFirst(other, one) ? 1 : 0));
  }

  /**
   * Lanes that wait for the call's ceiling, its own among them. A lane that has asked for no slot for `retentionMs` is held by its bucket
   * instead, and lanes of the background are rivals of each other only.
   */
  *#rivalsOf({ lane: own, request: { ceiling } }: Pick<QueuedCall, 'lane' | 'request'>): Generator<LaneView> {
    const now = this.#clock.monotonic();
    for (const lane of this.#registry.lanesUnder(ceiling.key)) {
      if (isBackground(lane.key) && !isBackground(own.key)) continue;
      const known = this.#limiter.laneCeiling(lane.bucket, lane.key);
      const { askedAt } = lane.rotation;
      const hasAsked = askedAt !== null && askedAt + retentionMs > now;
      if (known !== null && (hasAsked || known.waitMs > 0)) yield lane;
    }
  }

  #depthOf({ waiting, rotation: { elsewhere } }: LaneView): number {
    const isFresh = elsewhere !== null && this.#clock.monotonic() - elsewhere.at < retentionMs;
    return isFresh ? waiting + elsewhere.calls : waiting;
  }
}

/** True when `one` has gone without a slot for longer than `other`; those of the background come last. */
function isFirst({ key, rotation: one }: LaneView, { key: otherKey, rotation: other }: LaneView): boolean {
  if (isBackground(key) !== isBackground(otherKey)) return isBackground(otherKey);
  return other.servedAt !== null && (one.servedAt === null || one.servedAt < other.servedAt);
}

// Slots that come back

// A slot of a ceiling came back from a call that was not sent, here or at another replica: the lanes that wait for one ask again, also in
// other buckets than that of the call, until the ceiling refuses one or all have asked, so that a slot is left over only if no lane can use
// it (6). Bound: `lanesPerStep` of them in each `stepMs`, however many slots come back: each is an event in a bucket of its own.

const lanesPerStep = 32;
const stepMs = 20;

interface SlotsBackNeighbours {
  readonly registry: WaitRegistry;
  readonly rotation: LaneRotation;
}

/** The lanes under one ceiling ask again, a few at a time. */
interface Round {
  /** Lanes that have yet to ask. */
  rest: readonly LaneView[];
  /** When the first of them asked, monotonic milliseconds. */
  readonly since: number;
  /** A slot came back in the meantime, which lanes that had asked before may use: another round follows. */
  isRepeated: boolean;
}

export class SlotsBack {
  readonly #parts: AdmissionParts;
  readonly #neighbours: SlotsBackNeighbours;
  readonly #rounds = new Map<CeilingKey, Round>();

  constructor(parts: AdmissionParts, neighbours: SlotsBackNeighbours) {
    this.#parts = parts;
    this.#neighbours = neighbours;
  }

  /** A slot of the ceiling is back. The lane that has gone longest without a slot asks first. */
  onSlotBack(ceiling: CeilingKey): void {
    const { registry, rotation } = this.#neighbours;
    const running = this.#rounds.get(ceiling);
    if (running !== undefined) {
      running.isRepeated = true;
      return;
    }
    const rest = rotation.inOrder(registry.lanesUnder(ceiling));
    if (rest.length === 0) return;
    const round = { rest, since: this.#parts.clock.monotonic(), isRepeated: false };
    this.#rounds.set(ceiling, round);
    this.#step(ceiling, round);
  }

  /** The ceiling, asked at this monotonic time, had no slot: those that came back before are used. */
  onRefused(ceiling: CeilingKey, askedAt: number): void {
    const round = this.#rounds.get(ceiling);
    if (round !== undefined && askedAt >= round.since) round.rest = [];
  }

  #step(ceiling: CeilingKey, round: Round): void {
    const { detached, limiter, clock } = this.#parts;
    const asking = round.rest.slice(0, lanesPerStep);
    round.rest = round.rest.slice(lanesPerStep);
    // After the last step, too: slots that come back one by one begin a round each, and their lanes ask no faster than others.
    clock.after(stepMs, () => {
      if (round.rest.length > 0) return this.#step(ceiling, round);
      this.#rounds.delete(ceiling);
      if (round.isRepeated) this.onSlotBack(ceiling);
    });
    for (const lane of asking) if (lane.waiting > 0) detached(limiter.wake(lane.bucket, lane.key));
  }
}
