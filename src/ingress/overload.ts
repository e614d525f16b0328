/**
 * Refuses new calls and connections while the process is at one of its bounds, or short of time or memory.
 *
 * Owns: shedding by load, what a refused client is told, and how many connections the files allow. Does not own: counting connections
 * and bytes (`connections.ts`), the response. Invariants: a call that was let in is never refused here; the admin port
 * does not pass here; one long pause of the process, however long, refuses nobody: only a load that every sample of a window
 * shows does; without load the share of refused calls falls to 0.
 */
import { readFileSync } from 'node:fs';
import { getHeapStatistics } from 'node:v8';
import type { CancelTimer, Clock, Random } from '../clock.ts';
import type { ServerSettings } from '../config/settings.ts';
import { Refusal, type OverloadBound } from '../errors.ts';

/** Time between two samples of the process, milliseconds. */
export const checkEveryMs = 100;
/** Samples that all have to be over a bound: half a second, so that one collection of garbage or one stall is no overload. */
const sustainedSamples = 5;
/** Share of new calls by which refusing grows with each sample at the bound, twice as fast at twice the bound, and its growth at most. */
const rise = 0.05;
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

export interface Load {
  /** The newest samples, at most {@link sustainedSamples}. */
  readonly samples: readonly LoadSample[];
  /** The sustained load: the minimum over the samples, and 0 until there are enough of them. */
  readonly sustained: LoadSample;
  /** Share of new calls that is refused, 0 to 1. */
  readonly share: number;
  /** What the share is for; `null` while it is 0. */
  readonly cause: 'event_loop' | 'memory' | null;
}

export const noLoad: Load = { samples: [], sustained: { delayMs: 0, memoryRatio: 0 }, share: 0, cause: null };

type LoadBounds = Pick<ServerSettings, 'maxEventLoopDelayMs' | 'maxMemoryRatio'>;

/** The load after one more sample. */
export function loadAfter(load: Load, sample: LoadSample, bounds: LoadBounds): Load {
  const samples = [...load.samples.slice(1 - sustainedSamples), sample];
  if (samples.length < sustainedSamples) return { ...noLoad, samples };
  const delayMs = Math.min(...samples.map((each) => each.delayMs));
  const memoryRatio = Math.min(...samples.map((each) => each.memoryRatio));
  const late = delayMs / bounds.maxEventLoopDelayMs;
  const full = memoryRatio / bounds.maxMemoryRatio;
  const pressure = Math.max(late, full);
  let { share, cause } = load;
  if (pressure >= 1) {
    share = Math.min(1, share + Math.min(maxRise, rise * pressure));
    cause = late >= full ? 'event_loop' : 'memory';
  } else if (pressure < relievedAt) {
    share = Math.max(0, share - fall);
    if (share === 0) cause = null;
  }
  return { samples, sustained: { delayMs, memoryRatio }, share, cause };
}

/** Time until nobody is refused for the load any more, if it ends now, milliseconds. */
export const relievedInMs = ({ share }: Pick<Load, 'share'>): number =>
  Math.ceil(share / fall) * checkEveryMs;

/** Gives a sample each {@link checkEveryMs}, until it is cancelled. */
export type LoadWatch = (onSample: (sample: LoadSample) => void) => CancelTimer;

export interface OverloadOptions {
  readonly random: Pick<Random, 'next'>;
  readonly settings: LoadBounds;
  /** Looks at the load of the process; `null`: nothing is shed for it. */
  readonly load: LoadWatch | null;
  /** Called for every call, and every connection, that was refused as too many. */
  readonly onOverload: (bound: OverloadBound) => void;
  /** Called when shedding by load begins, and with `null` when it has ended. */
  readonly onShedding: (cause: OverloadBound | null) => void;
}

const details: Readonly<Record<OverloadBound, string>> = {
  connections: 'Too many connections are open at the moment. Use those that are open for several calls.',
  connection_calls: 'Too many calls are open on this connection. Use more connections.',
  calls: 'Too many calls are open at the moment.',
  bytes: 'Too many bytes of requests are held at the moment.',
  event_loop: 'Sluice is short of processor time at the moment.',
  memory: 'Sluice is short of memory at the moment.',
};

/** Room at a counted bound may come with the end of any call: when is not known. Milliseconds. */
const roomInMs = 1_000;

export class Overload {
  readonly #options: OverloadOptions;
  /** Ends the watch of the load. */
  readonly close: CancelTimer;
  /** The sustained load, and the share of new calls that is refused because of it. */
  load = noLoad;
  /** Calls and connections refused since the start, for whichever bound. */
  refusals = 0;

  constructor(options: OverloadOptions) {
    this.#options = options;
    this.close = options.load?.((sample) => this.#take(sample)) ?? (() => {});
  }

  /** The refusal of a new call because of the load of the process; `null` = the call may enter. */
  shed(): Refusal | null {
    const { cause, share } = this.load;
    if (cause === null || this.#options.random.next() >= share) return null;
    return this.refuse(cause, relievedInMs(this.load));
  }

  /** A new call or connection is over a bound. */
  refuse(bound: OverloadBound, retryInMs = roomInMs): Refusal {
    this.refusals += 1;
    this.#options.onOverload(bound);
    return new Refusal('overloaded', { retryInMs, detail: details[bound] });
  }

  #take(sample: LoadSample): void {
    const { cause } = this.load;
    this.load = loadAfter(this.load, sample, this.#options.settings);
    if ((cause === null) !== (this.load.cause === null)) this.#options.onShedding(this.load.cause);
  }
}

/** What a process takes beside heap and buffers: code, stacks, the tables of its sockets. Bytes, measured at the start. */
const processBytes = 64 * 1_048_576;

/**
 * Used share of the memory that the process may have: of V8's heap, or of the container's, whichever is fuller. Resident
 * memory is not looked at: it stays high after memory was freed, and calls would be refused for ever. V8 collects before it
 * is half-way between what is alive and its limit, so a heap at 0.85 has at least 0.7 alive.
 */
export function memoryRatio(constrainedBytes: number): number {
  const { used_heap_size, heap_size_limit, external_memory } = getHeapStatistics();
  const held = used_heap_size + external_memory + processBytes;
  // Without a limit of its own the system reports one beyond any machine.
  const container = constrainedBytes > 0 ? held / constrainedBytes : 0;
  return Math.max(used_heap_size / heap_size_limit, container);
}

/** The watch of this process. The limit of its container is read once: the system answers from files, in a quarter of a millisecond. */
export const watchProcess =
  (clock: Clock): LoadWatch =>
  (onSample) => {
    const constrainedBytes = process.constrainedMemory();
    let cancel: CancelTimer = () => {};
    const plan = (): void => {
      const plannedAt = clock.monotonic();
      cancel = clock.after(checkEveryMs, () => {
        plan();
        const delayMs = Math.max(0, clock.monotonic() - plannedAt - checkEveryMs);
        onSample({ delayMs, memoryRatio: memoryRatio(constrainedBytes) });
      });
    };
    plan();
    return () => cancel();
  };

/** Files that the process has open itself: Redis, the log, the admin port. */
const ownFiles = 64;
/** A client's connection, and the one to the upstream. */
const filesPerConnection = 2;

/**
 * `wanted`, or fewer client connections, where this process may not open so many files: beyond it the system would cut connections, also
 * those of the admin port, and nobody would hear of it. Node has raised the limit as far as it may.
 */
export function connectionsWithin(wanted: number): number {
  let limits = '';
  try {
    limits = readFileSync('/proc/self/limits', 'latin1');
  } catch {
    // The system does not say.
  }
  const files = Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Infinity);
  return Math.max(1, Math.min(wanted, Math.floor((files - ownFiles) / filesPerConnection)));
}
