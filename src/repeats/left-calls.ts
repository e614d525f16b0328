/**
 * What clients that left their calls may come back for, by the digest of the call. Each is given out once, because equal calls
 * without a key are calls of their own. Owns: how long it is remembered, and of how many calls; `redis-repeats.ts` does the same
 * for all replicas.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';

/**
 * `call`: the call with this name goes on without a client, or has ended and its response is kept · `place`: the call waited and
 * has ended; its repeat has its position. `arrivedAt`: monotonic milliseconds.
 */
export type LeftCall =
  { readonly kind: 'call'; readonly name: string } | { readonly kind: 'place'; readonly arrivedAt: number };

/** A repeat that comes later than this after its call was left is a new call. Milliseconds. */
export const leftKeptMs = 60_000;
const maxDigests = 100_000;
/** Of equal calls that clients have left, at most so many are remembered. */
export const maxLeftOfOne = 100;

type Entry = LeftCall & { readonly leftAt: number };

export class LeftCalls {
  readonly #clock: Clock;
  /** Oldest first. */
  readonly #left = new LRUCache<string, readonly Entry[]>({ max: maxDigests });

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  offer(digest: string, left: LeftCall): void {
    const entries = [...(this.#left.get(digest) ?? []), { ...left, leftAt: this.#clock.monotonic() }];
    this.#left.set(digest, entries.slice(-maxLeftOfOne));
  }

  /** The oldest, which is nobody else's from now on; `null` = there is none. */
  take(digest: string): LeftCall | null {
    const usable = (this.#left.get(digest) ?? []).filter(
      ({ leftAt }) => this.#clock.monotonic() - leftAt <= leftKeptMs,
    );
    const [first, ...others] = usable;
    this.#put(digest, others);
    return first ?? null;
  }

  /** Takes this call out. False when it was not there: somebody has taken it. */
  withdraw(digest: string, name: string): boolean {
    const entries = this.#left.get(digest) ?? [];
    const others = entries.filter((each) => each.kind !== 'call' || each.name !== name);
    this.#put(digest, others);
    return others.length < entries.length;
  }

  #put(digest: string, entries: readonly Entry[]): void {
    if (entries.length > 0) this.#left.set(digest, entries);
    else this.#left.delete(digest);
  }
}
