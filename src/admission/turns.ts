/**
 * Lanes of one workspace that wait for places of the same ceiling take turns: the one that has gone longest without a
 * place is first. Owns: how long a lane lets others go first, and which position under the ceiling follows for a call.
 * Refuses to own: order inside a lane (the limiter), who waits (`waiting.ts`).
 * Keeps: no lane is passed by for ever; a lane alone waits for nobody.
 *
 * What other replicas gave a lane is not known here, so over replicas turns are fair on average only.
 */
import type { Clock } from '../clock.ts';
import { fullFor, type Gate, type Gates } from './gates.ts';
import type { Entry } from './ticket.ts';
import type { Waiting } from './waiting.ts';

/** A lane whose turn it is has taken its place by then, milliseconds. */
const turnMs = 10;
/** Nobody lets more lanes than this go first. */
const mostTurns = 8;
/** What was last seen of a lane holds for so long: that it waits for the ceiling, how many wait in it. Milliseconds. */
const memoryMs = 4_000;

export class Turns {
  readonly #clock: Clock;
  readonly #gates: Gates;
  readonly #waiting: Waiting;

  constructor(clock: Clock, gates: Gates, waiting: Waiting) {
    this.#clock = clock;
    this.#gates = gates;
    this.#waiting = waiting;
  }

  /** A newcomer was told how many calls go first in its lane, over all replicas. */
  told(entry: Entry, ahead: number): void {
    const elsewhere = Math.max(0, ahead - this.#waiting.inLane(entry));
    this.#gates.of(entry.admission).elsewhere = { calls: elsewhere, at: this.#clock.monotonic() };
  }

  /** How long after a place has come free this call's lane wakes, milliseconds. */
  delayMs(entry: Entry): number {
    const own = this.#gates.of(entry.admission);
    let turns = 0;
    for (const { gate } of this.#others(entry)) {
      if (isLonger(gate, own)) turns += 1;
      if (turns >= mostTurns) break;
    }
    return turns * turnMs;
  }

  /**
   * The call's position under its ceiling (1 = next) with so many of its lane before it: each other lane that waits for
   * the ceiling gets as many places meanwhile, and one more if it has gone longer without.
   */
  positionOf(entry: Entry, ahead: number): number {
    const own = this.#gates.of(entry.admission);
    let position = ahead + 1;
    for (const { gate, depth } of this.#others(entry)) {
      position += Math.min(depth, isLonger(gate, own) ? ahead + 1 : ahead);
    }
    return position;
  }

  /** Other lanes that wait for the same ceiling. One whose bucket holds it back has not asked for a while. */
  *#others({ ceiling, admission }: Entry): Generator<{ readonly gate: Gate; readonly depth: number }> {
    const now = this.#clock.monotonic();
    const own = this.#gates.find(admission);
    for (const [lane, waiting] of this.#waiting.lanesUnder(ceiling.key)) {
      const gate = this.#gates.named(lane);
      if (gate === undefined || gate === own || !gate.atEdge) continue;
      const hasAsked = gate.askedAt !== null && gate.askedAt + memoryMs > now;
      if (hasAsked || fullFor(gate, now) !== null) yield { gate, depth: this.#depthOf(gate, waiting) };
    }
  }

  #depthOf({ elsewhere }: Gate, waiting: number): number {
    const isFresh = elsewhere !== null && this.#clock.monotonic() - elsewhere.at < memoryMs;
    return isFresh ? waiting + elsewhere.calls : waiting;
  }
}

/** The one lane has gone without a slot for longer than the other. */
const isLonger = (one: Gate, other: Gate): boolean =>
  other.slotAt !== null && (one.slotAt === null || one.slotAt < other.slotAt);
