/**
 * Scans of all calls, whose cost grows with their number: after a scan of very many the next one waits a while.
 *
 * Owns: when the next scan may be. Does not own: what a scan is for. Keeps: however often scans are asked for, they take
 * a small part of the time of everything else; what was asked for is scanned, at the latest after the rest.
 */
import type { Clock } from '../clock.ts';

/** A scan of fewer calls costs too little to rest after it: a call that is late is refused in the same tick. */
const maxFreeVisits = 100;
/** Milliseconds of rest for each call that was visited: a hundred times what a visit takes, or thereabouts. */
const restPerVisitMs = 0.01;

type State =
  | { readonly kind: 'ready' }
  /** No scan before then, monotonic milliseconds. */
  | { readonly kind: 'resting'; readonly until: number }
  /** A scan was asked for during the rest, and follows it. */
  | { readonly kind: 'planned' };

export class ScanThrottle {
  readonly #clock: Clock;
  readonly #scan: () => number;
  #state: State = { kind: 'ready' };

  /** @param scan everything that is due; returns how many calls it visited. */
  constructor(clock: Clock, scan: () => number) {
    this.#clock = clock;
    this.#scan = scan;
  }

  /** Scans at once, or after the rest. What is asked for while a scan is planned is part of that one. */
  request(): void {
    const state = this.#state;
    if (state.kind === 'planned') return;
    const restMs = state.kind === 'resting' ? state.until - this.#clock.monotonic() : 0;
    if (restMs <= 0) return this.#run();
    this.#state = { kind: 'planned' };
    this.#clock.after(restMs, () => this.#run());
  }

  #run(): void {
    this.#state = { kind: 'ready' };
    const visits = this.#scan();
    if (visits <= maxFreeVisits) return;
    this.#state = { kind: 'resting', until: this.#clock.monotonic() + visits * restPerVisitMs };
  }
}
