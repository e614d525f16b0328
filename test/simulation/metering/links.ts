/**
 * The way from a replica to a store that several of them share: one batch of events under way at a time, what comes
 * meanwhile goes with the next one, and now and then the whole process stands still.
 */
import type { Random } from '../../../src/clock.ts';
import type { Fleet, Range } from './scene.ts';

export interface Timeline {
  now(): number;
  at(at: number, run: () => void): void;
}

const maxBatch = 32;

export class Link {
  readonly #fleet: Fleet;
  readonly #random: Random;
  readonly #time: Timeline;
  #events: (() => void)[] = [];
  #isBusy = false;
  #stallsAt: number;
  #stallsUntil = 0;
  #freeAt = 0;

  constructor(fleet: Fleet, random: Random, time: Timeline) {
    this.#fleet = fleet;
    this.#random = random;
    this.#time = time;
    this.#stallsAt = this.#between(fleet.stallsAfterMs);
  }

  /** `event` happens at the store. */
  report(event: () => void): void {
    this.#events.push(event);
    if (!this.#isBusy) this.#flush();
  }

  /** Happens in the process of the replica, `afterMs` from now or when it runs again. */
  here(afterMs: number, run: () => void): void {
    this.#time.at(this.#awakeAt(this.#time.now() + afterMs), run);
  }

  /** Happens in the process of the replica as soon as the store has reported it. */
  hear(run: () => void): void {
    this.here(this.#between(this.#fleet.wayMs), run);
  }

  #flush(): void {
    this.#isBusy = true;
    const batch = this.#events.splice(0, maxBatch);
    this.#time.at(this.#time.now() + this.#between(this.#fleet.wayMs), () => {
      for (const event of batch) event();
      this.hear(() => {
        this.#isBusy = false;
        if (this.#events.length > 0) this.#flush();
      });
    });
  }

  #awakeAt(at: number): number {
    while (this.#stallsUntil <= at && this.#stallsAt <= at) {
      this.#stallsUntil = this.#stallsAt + this.#between(this.#fleet.stallMs);
      this.#stallsAt = this.#stallsUntil + this.#between(this.#fleet.stallsAfterMs);
    }
    this.#freeAt = Math.max(at, this.#stallsUntil, this.#freeAt) + this.#between(this.#fleet.jobMs);
    return this.#freeAt;
  }

  #between([from, until]: Range): number {
    return from + this.#random.next() * (until - from);
  }
}
