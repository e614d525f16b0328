/**
 * The last quarter of an hour as the page draws it: a sample every two seconds per upstream. Owns the samples and the
 * counts since the last one; does not own how they look. Bounded: {@link sampleCount} samples, configured upstreams.
 */
import type { Clock } from '../clock.ts';
import type { EndedFact, FactSink, LivePressure, ProcessPressure } from '../telemetry/events.ts';

export const sampleEveryMs = 2_000;
export const sampleCount = 450;

/** What happened on one upstream in the two seconds before `at`, and what was waiting then. */
export interface UpstreamSample {
  readonly waiting: number;
  readonly oldestMs: number;
  readonly inFlight: number;
  /** Responses passed on, throttled ones not counted. */
  readonly passed: number;
  /** Throttled responses the clients never saw. */
  readonly absorbed: number;
  /** Throttled responses passed on. */
  readonly throttled: number;
  readonly shed: number;
  /** Longest wait of a call that ended in these two seconds, milliseconds. */
  readonly longestWaitMs: number;
}

export interface Sample {
  /** Milliseconds since the Unix epoch. */
  readonly at: number;
  readonly upstreams: Readonly<Record<string, UpstreamSample>>;
  /** Refusals for lack of room or time, by code. */
  readonly refusals: Readonly<Record<string, number>>;
  /** Calls refused with 429, by what held them back. */
  readonly heldBy: Readonly<Record<string, number>>;
}

interface Counts {
  passed: number;
  absorbed: number;
  throttled: number;
  shed: number;
  longestWaitMs: number;
}

const noCounts = (): Counts => ({ passed: 0, absorbed: 0, throttled: 0, shed: 0, longestWaitMs: 0 });

export class Timeline implements FactSink {
  readonly #clock: Clock;
  readonly #samples: Sample[] = [];
  #counts = new Map<string, Counts>();
  #refusals: Record<string, number> = {};
  #heldBy: Record<string, number> = {};
  #overloadRefusals = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** All samples, oldest first. */
  get samples(): readonly Sample[] {
    return this.#samples;
  }

  arrived(): void {}

  throttled(): void {}

  absorbed(_id: string, upstream: string): void {
    this.#of(upstream).absorbed += 1;
  }

  ended(_id: string, upstream: string, fact: EndedFact): void {
    const own = this.#of(upstream);
    own.longestWaitMs = Math.max(own.longestWaitMs, fact.waitedMs);
    if (fact.outcome === 'ok' || fact.outcome === 'upstream_error') own.passed += 1;
    if (fact.outcome === 'throttled') own.throttled += 1;
    if (fact.heldBy !== null) this.#heldBy[fact.heldBy] = (this.#heldBy[fact.heldBy] ?? 0) + 1;
    if (fact.outcome !== 'shed') return;
    own.shed += 1;
    // Refusals for overload come from the process's own count: most calls of them never became calls of an upstream.
    if (fact.code !== null && fact.code !== 'overloaded')
      this.#refusals[fact.code] = (this.#refusals[fact.code] ?? 0) + 1;
  }

  /** Takes a sample now. `overloadRefusals` counts from the start of the process. */
  sample(
    live: readonly LivePressure[],
    { overloadRefusals }: Pick<ProcessPressure, 'overloadRefusals'>,
  ): Sample {
    const upstreams = Object.fromEntries(
      live.map(({ upstream, waiting, oldestMs, inFlight }) => [
        upstream,
        { waiting, oldestMs: Math.round(oldestMs), inFlight, ...(this.#counts.get(upstream) ?? noCounts()) },
      ]),
    );
    const overloaded = overloadRefusals - this.#overloadRefusals;
    this.#overloadRefusals = overloadRefusals;
    const refusals = overloaded > 0 ? { ...this.#refusals, overloaded } : this.#refusals;
    const heldBy = this.#heldBy;
    const taken: Sample = { at: this.#clock.now(), upstreams, refusals, heldBy };
    this.#samples.push(taken);
    if (this.#samples.length > sampleCount) this.#samples.shift();
    this.#counts = new Map();
    this.#refusals = {};
    this.#heldBy = {};
    return taken;
  }

  #of(upstream: string): Counts {
    let found = this.#counts.get(upstream);
    if (found === undefined) this.#counts.set(upstream, (found = noCounts()));
    return found;
  }
}
