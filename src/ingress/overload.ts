/**
 * Refuses new calls and connections while the process is at one of its bounds, or overloaded.
 *
 * Owns: the bounds on connections, open calls and held bytes, shedding by load, and the time that a refused client is given.
 * Does not own: counting connections and bytes (`connections.ts`, `body.ts`), the response. Invariant: a call that was let in
 * is never refused here; the admin port does not pass here.
 */
import { getHeapStatistics } from 'node:v8';
import type { CancelTimer, Clock, Random } from '../clock.ts';
import type { OverloadBound } from '../errors.ts';
import {
  checkEveryMs,
  loadAfter,
  noLoad,
  relievedInMs,
  roomInMs,
  sustainedLoad,
  type Load,
  type LoadBounds,
  type LoadSample,
} from './overload.policy.ts';

export interface Overloaded {
  readonly bound: OverloadBound;
  /** Time until trying again can succeed, milliseconds. */
  readonly retryInMs: number;
  /** One sentence for the caller. */
  readonly detail: string;
}

export interface OverloadOptions {
  readonly clock: Clock;
  readonly random: Pick<Random, 'next'>;
  readonly bounds: LoadBounds;
  /** Looks at the load of the process; `null`: nothing is shed for it. */
  readonly load: LoadWatch | null;
  /** Called for every refusal. */
  readonly onRefused: (bound: OverloadBound) => void;
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

/** What ends and is refused counts for so long on average, milliseconds: older of it counts less. */
const turnoverMs = 5_000;

export class Overload {
  readonly #options: OverloadOptions;
  readonly #stop: CancelTimer;
  #load: Load = noLoad;
  /** Calls that ended, and those that were refused at a counted bound, as they count at {@link #countedAt}. */
  #ended = 0;
  #refused = 0;
  #countedAt: number;
  readonly #startedAt: number;
  #refusals = 0;

  constructor(options: OverloadOptions) {
    this.#options = options;
    this.#startedAt = this.#countedAt = options.clock.monotonic();
    this.#stop =
      options.load?.((sample) => this.#setLoad(loadAfter(this.#load, sample, options.bounds))) ?? (() => {});
  }

  /** The sustained load, and the share of new calls that is refused because of it. */
  get load(): { readonly delayMs: number; readonly memoryRatio: number; readonly share: number } {
    return { ...sustainedLoad(this.#load), share: this.#load.share };
  }

  /** Calls and connections refused since the start, for whichever bound. */
  get refusals(): number {
    return this.#refusals;
  }

  /** The refusal of a new call because of the load of the process; `null` = the call may enter. */
  shed(): Overloaded | null {
    const { cause, share } = this.#load;
    if (cause === null || this.#options.random.next() >= share) return null;
    return this.#refusal(cause, relievedInMs(this.#load));
  }

  /** A new call is over a bound that is counted. */
  refuse(bound: Exclude<OverloadBound, LoadBound>): Overloaded {
    this.#forget();
    this.#refused += 1;
    const overMs = Math.min(turnoverMs, this.#countedAt - this.#startedAt);
    return this.#refusal(bound, roomInMs({ ended: this.#ended, refused: this.#refused, overMs }));
  }

  /** Counts a connection that was closed without a response, because the process is far over its bound on connections. */
  dropped(): void {
    this.#refusals += 1;
    this.#options.onRefused('connections');
  }

  /** A call has ended: there is room for another one. */
  callEnded(): void {
    this.#forget();
    this.#ended += 1;
  }

  close(): void {
    this.#stop();
  }

  #refusal(bound: OverloadBound, retryInMs: number): Overloaded {
    this.#refusals += 1;
    this.#options.onRefused(bound);
    return { bound, retryInMs, detail: details[bound] };
  }

  #setLoad(next: Load): void {
    const { cause } = this.#load;
    this.#load = next;
    if ((cause === null) !== (next.cause === null)) this.#options.onShedding(next.cause);
  }

  #forget(): void {
    const now = this.#options.clock.monotonic();
    const kept = Math.exp((this.#countedAt - now) / turnoverMs);
    this.#countedAt = now;
    this.#ended *= kept;
    this.#refused *= kept;
  }
}

type LoadBound = 'event_loop' | 'memory';

/** Gives a sample each {@link lookEveryMs}, until it is cancelled. */
export type LoadWatch = (onSample: (sample: LoadSample) => void) => CancelTimer;

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

/**
 * The limit of the container is read again after so many looks: the system answers from files, in a quarter of a millisecond, and a
 * limit changes seldom, if ever.
 */
const looksPerLimit = 50;

/** The watch of this process. */
export const watchProcess =
  (clock: Clock): LoadWatch =>
  (onSample) => {
    let cancel: CancelTimer = () => {};
    let looks = 0;
    let constrainedBytes = 0;
    const plan = (): void => {
      const plannedAt = clock.monotonic();
      cancel = clock.after(checkEveryMs, () => {
        plan();
        const delayMs = Math.max(0, clock.monotonic() - plannedAt - checkEveryMs);
        if (looks % looksPerLimit === 0) constrainedBytes = process.constrainedMemory();
        looks += 1;
        onSample({ delayMs, memoryRatio: memoryRatio(constrainedBytes) });
      });
    };
    plan();
    return () => cancel();
  };
