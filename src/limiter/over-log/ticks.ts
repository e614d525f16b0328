/**
 * Time is an event, too: when a grant is due, one of the replicas appends a tick. Which one follows from the state, and so they agree:
 * the one of the lowest name among those heard of lately; the others wait a little longer, each by its rank, in case that one is gone.
 *
 * Owns: the timer of one replica. Does not own: when a grant is due (the fold says).
 */
import type { CancelTimer, Clock } from '../../clock.ts';
import type { ReplicaId } from '../../ids.ts';
import type { SortedNames } from '../policy/sorted.policy.ts';

/** A replica that uses the log is heard of once a second; one that was not for this time may be gone. Milliseconds. */
const heardWithinMs = 2_500;
/** How much longer each further replica waits. Longer than it takes to hear the tick of the one before. Milliseconds. */
const stepMs = 40;

/** How many replicas tick before this one. */
export function rankOf(replica: ReplicaId, replicas: SortedNames<ReplicaId>, now: number): number {
  return replicas.between(now - heardWithinMs, Infinity).filter((other) => other < replica).length;
}

export class DueTick {
  readonly #clock: Clock;
  readonly #tick: () => void;
  #cancel: CancelTimer | null = null;

  constructor(clock: Clock, tick: () => void) {
    this.#clock = clock;
    this.#tick = tick;
  }

  /** Something is due in `inMs` milliseconds, which replaces what was due before. */
  note(inMs: number, rank: number): void {
    this.cancel();
    this.#cancel = this.#clock.after(Math.max(0, inMs) + rank * stepMs, this.#tick);
  }

  cancel(): void {
    this.#cancel?.();
    this.#cancel = null;
  }
}
