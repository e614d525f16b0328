/**
 * Walks over all calls, whose cost grows with their number: after one over very many the next waits a while.
 *
 * Owns: when the next walk may be. Refuses to own: what it looks for. Keeps: however often walks are asked for, they take
 * a small part of the time of everybody else; what was asked for is walked for, at the latest after the rest.
 */
import type { Clock } from '../clock.ts';

/** A walk over fewer calls costs too little to rest after it: whoever is hopeless is told in the same turn. */
const few = 100;
/** Milliseconds of rest for each call that was visited: a hundred times what a visit takes, or thereabouts. */
const restPerVisitMs = 0.01;

export class Paced {
  readonly #clock: Clock;
  readonly #walk: () => number;
  #restsUntil: number | null = null;
  #planned = false;

  /** @param walk everything that is due; returns how many calls it visited. */
  constructor(clock: Clock, walk: () => number) {
    this.#clock = clock;
    this.#walk = walk;
  }

  /** Walks at once, or after the rest. What is asked for while a walk is planned is part of that one. */
  soon(): void {
    if (this.#planned) return;
    const restMs = this.#restsUntil === null ? 0 : this.#restsUntil - this.#clock.monotonic();
    if (restMs <= 0) return this.#run();
    this.#planned = true;
    this.#clock.after(restMs, () => {
      this.#planned = false;
      this.#run();
    });
  }

  #run(): void {
    const visits = this.#walk();
    this.#restsUntil = visits <= few ? null : this.#clock.monotonic() + visits * restPerVisitMs;
  }
}
