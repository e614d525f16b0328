/**
 * A slot of a ceiling came back from a call that was not sent, here or at another replica: the lanes that wait for one ask again, also
 * in other buckets than that of the call.
 *
 * Owns: which lanes ask again, in which order and how fast. Does not own: noticing a slot that is back (`limiter/ceilings.ts`), what an
 * asking lane gets (the limiter, `ceiling-gate.ts`).
 * Keeps: lanes ask until the ceiling refuses one or all have asked, so that a slot is left over only if no lane can use it (6). Bound:
 * `lanesPerStep` of them in each `stepMs`, however many slots come back: each is an event in a bucket of its own.
 */
import type { CeilingKey } from '../limiter/ceilings.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts } from './parts.ts';
import type { WaitRegistry } from './wait-registry.ts';

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
    const { background, limiter, clock } = this.#parts;
    const asking = round.rest.slice(0, lanesPerStep);
    round.rest = round.rest.slice(lanesPerStep);
    // After the last step, too: slots that come back one by one begin a round each, and their lanes ask no faster than others.
    clock.after(stepMs, () => {
      if (round.rest.length > 0) return this.#step(ceiling, round);
      this.#rounds.delete(ceiling);
      if (round.isRepeated) this.onSlotBack(ceiling);
    });
    for (const lane of asking) if (lane.waiting > 0) background(limiter.wake(lane.bucket, lane.key));
  }
}
