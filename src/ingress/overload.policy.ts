/**
 * When new calls are refused because the process itself is short of time or memory, how many of them, and when to come back.
 *
 * Owns: how the share of refused calls changes with each sample. Does not own: taking samples, and bounds that are counted
 * (`overload.ts`). Invariants: one long pause of the process, however long, refuses nobody: only a load that every sample of a window
 * shows does; without load the share falls to 0. Pure.
 */

/** Time between two samples of the process, milliseconds. */
export const checkEveryMs = 100;
/** Samples that all have to be over a bound: half a second, so that one collection of garbage or one stall is no overload. */
const sustainedSamples = 5;
/** Share of new calls by which refusing grows with each sample at the bound; twice as fast at twice the bound. */
const rise = 0.05;
/** Growth for one sample at most. */
const maxRise = 0.2;
/** Share by which refusing falls with each sample well under the bounds: from all to nothing in 5 s. */
const fall = 0.02;
/** Below this part of a bound refusing falls; between it and the bound it stays. */
const relievedAt = 0.8;

/** One sample of the process. */
export interface LoadSample {
  /** How late a timer was, milliseconds. */
  readonly delayMs: number;
  /** Used share of the memory that the process may have, 0 to 1. */
  readonly memoryRatio: number;
}

export interface LoadBounds {
  readonly maxEventLoopDelayMs: number;
  readonly maxMemoryRatio: number;
}

export type LoadCause = 'event_loop' | 'memory';

export interface Load {
  /** The newest samples, at most {@link sustainedSamples}. */
  readonly samples: readonly LoadSample[];
  /** Share of new calls that is refused, 0 to 1. */
  readonly share: number;
  /** What the share is for; `null` while it is 0. */
  readonly cause: LoadCause | null;
}

export const noLoad: Load = { samples: [], share: 0, cause: null };

/** The sustained load: the minimum over the samples of the window, and 0 until the window is full. */
export function sustainedLoad({ samples }: Pick<Load, 'samples'>): LoadSample {
  if (samples.length < sustainedSamples) return { delayMs: 0, memoryRatio: 0 };
  return {
    delayMs: Math.min(...samples.map(({ delayMs }) => delayMs)),
    memoryRatio: Math.min(...samples.map(({ memoryRatio }) => memoryRatio)),
  };
}

/** The load after one more sample. */
export function loadAfter(load: Load, sample: LoadSample, bounds: LoadBounds): Load {
  const samples = [...load.samples.slice(1 - sustainedSamples), sample];
  const { delayMs, memoryRatio } = sustainedLoad({ samples });
  const late = delayMs / bounds.maxEventLoopDelayMs;
  const full = memoryRatio / bounds.maxMemoryRatio;
  const pressure = Math.max(late, full);
  if (pressure >= 1) {
    const share = Math.min(1, load.share + Math.min(maxRise, rise * pressure));
    return { samples, share, cause: late >= full ? 'event_loop' : 'memory' };
  }
  const share = pressure < relievedAt ? Math.max(0, load.share - fall) : load.share;
  return { samples, share, cause: share === 0 ? null : load.cause };
}

/** Time until nobody is refused for the load any more, if it ends now, milliseconds. */
export const relievedInMs = ({ share }: Pick<Load, 'share'>): number =>
  Math.ceil(share / fall) * checkEveryMs;

/** How many calls ended and were refused at a bound on counts, over some time. */
export interface BoundTurnover {
  /** Calls that ended, and calls that were refused at the bound, in the last `overMs`. */
  readonly ended: number;
  readonly refused: number;
  readonly overMs: number;
}

/** The least and the longest time given to a refused client, milliseconds: the shortest `Retry-After`, and one window of a ceiling. */
const minRetryMs = 1_000;
const maxRetryMs = 60_000;

/**
 * Time until a client that is refused at a counted bound can find room, milliseconds: as calls end now, those that were
 * refused in the counted time take the room one after the other, and this client comes behind them. The next end is counted as if it came
 * now, so that a process in which none has ended yet has a rate, too.
 */
export function roomInMs({ ended, refused, overMs }: BoundTurnover): number {
  const ms = Math.ceil((refused * overMs) / (ended + 1));
  return Math.min(maxRetryMs, Math.max(minRetryMs, ms));
}
