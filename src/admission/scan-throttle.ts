/**
 * Limits how often all calls are scanned. A scan costs time for each call that it visits, so after a scan of many calls the next
 * one waits.
 *
 * Owns: when the next scan may run. Does not own: what a scan does. Keeps: scans take a small part of the process' time, however
 * often they are requested; a requested scan runs at the latest after the rest.
 */
import type { Clock } from '../clock.ts';

/** A scan that visits no more calls is so cheap that no rest follows it: late calls are refused in the same tick. */
const maxFreeVisits = 100;
/** Milliseconds of rest for each call that was visited: about a hundred times as long as a visit takes. */
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

  /** @param scan scans everything that is due, and returns how many calls it visited. */
  constructor(clock: Clock, scan: () => number) {
    this.#clock = clock;
    this.#scan = scan;
  }

  /** Scans at once, or after the rest. Requests that come while a scan is planned are served by that scan. */
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
