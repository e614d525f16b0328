/**
 * Refuses new calls and connections while the process is at one of its bounds, or short of time or memory.
 *
 * Owns: shedding by load, what a refused client is told, and how many connections the files allow. Does not own: counting connections
 * and bytes (`connections.ts`), the response. Invariants: a call that was let in is never refused here; the admin port
 * does not pass here; one long pause of the process, however long, refuses nobody: only a load that every sample of a window
 * shows does, until a sample is well below the bound.
 */
import { readFileSync } from 'node:fs';
import { getHeapStatistics } from 'node:v8';
import type { CancelTimer, Clock } from '../clock.ts';
import type { ServerSettings } from '../config/settings.ts';
import { Refusal, type OverloadBound } from '../errors.ts';

/** Time between two samples of the process, milliseconds. */
const checkEveryMs = 100;
/** Samples that all have to be over a bound: half a second, so that one collection of garbage or one stall is no overload. */
const sustainedSamples = 5;
/** Below this part of a bound calls are let in again. */
const relievedAt = 0.8;

/** One sample of the process. */
export interface LoadSample {
  /** How late a timer was, milliseconds. */
  readonly delayMs: number;
  /** Used share of the memory that the process may have, 0 to 1. */
  readonly memoryRatio: number;
}

/** Gives a sample each {@link checkEveryMs}, until it is cancelled. */
export type LoadWatch = (onSample: (sample: LoadSample) => void) => CancelTimer;

export interface OverloadOptions {
  readonly settings: Pick<ServerSettings, 'maxEventLoopDelayMs' | 'maxMemoryRatio'>;
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

/** Room may come with the end of any call: when is not known. Milliseconds. */
const roomInMs = 1_000;

export class Overload {
  readonly #options: OverloadOptions;
  #samples: readonly LoadSample[] = [];
  /** Ends the watch of the load. */
  readonly close: CancelTimer;
  /** The sustained load: the least of the newest samples, and nothing until there are enough of them. */
  sustained: LoadSample = { delayMs: 0, memoryRatio: 0 };
  /** What new calls are refused for; `null` = for no load. */
  cause: 'event_loop' | 'memory' | null = null;
  /** Calls and connections refused since the start, for whichever bound. */
  refusals = 0;

  constructor(options: OverloadOptions) {
    this.#options = options;
    this.close = options.load?.((sample) => this.#take(sample)) ?? (() => {});
  }

  /** A new call or connection is over a bound. */
  refuse(bound: OverloadBound): Refusal {
    this.refusals += 1;
    this.#options.onOverload(bound);
    return new Refusal('overloaded', { retryInMs: roomInMs, detail: details[bound] });
  }

  #take(sample: LoadSample): void {
    const { settings, onShedding } = this.#options;
    this.#samples = [...this.#samples.slice(1 - sustainedSamples), sample];
    if (this.#samples.length < sustainedSamples) return;
    const delayMs = Math.min(...this.#samples.map((each) => each.delayMs));
    const memoryRatio = Math.min(...this.#samples.map((each) => each.memoryRatio));
    this.sustained = { delayMs, memoryRatio };
    const late = delayMs / settings.maxEventLoopDelayMs;
    const full = memoryRatio / settings.maxMemoryRatio;
    const wasNull = this.cause === null;
    if (Math.max(late, full) >= 1) this.cause = late >= full ? 'event_loop' : 'memory';
    else if (Math.max(late, full) < relievedAt) this.cause = null;
    if (wasNull !== (this.cause === null)) onShedding(this.cause);
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
