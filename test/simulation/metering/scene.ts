/** What an experiment with a paced upstream is made of, and what it tells. */
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import type { Dialect as DescribedDialect } from '../../../src/config/settings.ts';
import type { Counter } from './counters.ts';
import type { Dialect } from './dialects.ts';
import type { Outsider } from './outsiders.ts';

export type Range = readonly [from: number, until: number];

/** Replicas that share a store. */
export interface Fleet {
  readonly replicas: number;
  /** To the store, and back. Milliseconds. */
  readonly wayMs: Range;
  /** From the end of one stall of a process to the next one, and how long it stands still. Milliseconds. */
  readonly stallsAfterMs: Range;
  readonly stallMs: Range;
  /** What a process does one after the other takes so long each. Milliseconds. */
  readonly jobMs: Range;
}

export interface Scene {
  readonly counter: () => Counter;
  readonly dialect: Dialect;
  /** How the configuration describes it (`speaks`); left out, it does not. */
  readonly described?: DescribedDialect;
  readonly windowMs: number;
  readonly stated: readonly MeterSetting[];
  readonly probe: number;
  /** When calls come, milliseconds. */
  readonly calls: readonly number[];
  readonly maxWaitMs: number;
  readonly maxInFlight: number | null;
  /** From sending to arriving, from arriving to the response's head; a refusal is answered at once. Milliseconds. */
  readonly wayMs: Range;
  readonly serviceMs: Range;
  /** The store is shared by these; left out, it is in the process that sends. */
  readonly fleet?: Fleet;
  readonly outsider: { readonly comes: Outsider; readonly share: number } | null;
}

export interface Sent {
  readonly at: number;
  readonly admitted: boolean;
}

export interface Outcome {
  /** Arrivals at the upstream, in order. */
  readonly arrivals: readonly Sent[];
  /** Calls that Sluice refused, with the stated wait. Milliseconds. */
  readonly refusedAtEntry: readonly number[];
  /** Units that other clients took until the last call was admitted. */
  readonly outside: number;
}
