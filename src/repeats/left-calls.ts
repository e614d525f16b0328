/**
 * What clients that left their calls without a key may come back for, by the digest of the call. Each is given out once, at whichever
 * replica, because equal calls without a key are calls of their own.
 */
import type { Clock } from '../clock.ts';
import { change, type Entry, type MemoryMap, type SharedMap } from '../replicated/shared-map.ts';
import { leftKeptMs } from './claim.ts';

/**
 * `call`: the call with this name goes on without a client, or has ended and its response is kept · `place`: the call waited and
 * has ended; its repeat has its position. `arrivedAt`: monotonic milliseconds.
 */
export type LeftCall =
  { readonly kind: 'call'; readonly name: string } | { readonly kind: 'place'; readonly arrivedAt: number };

/** Of equal calls that clients have left, at most so many are remembered. */
const maxLeftOfOne = 100;
/** Life of a list, milliseconds. */
const listMs = 2 * leftKeptMs;

/** Something that was left, as all replicas read it: ages count from when the list was written. Milliseconds. */
export interface Offer {
  /** Name of the call; `null` = its position is offered. */
  readonly name: string | null;
  readonly arrivedAgoMs: number;
  readonly leftAgoMs: number;
}
export type Offers = readonly Offer[];

export interface LeftCallsParts {
  readonly clock: Clock;
  /** Opaque name of this replica. */
  readonly replica: string;
  readonly map: SharedMap<Offers>;
  /** Has what is offered while the map does not answer. */
  readonly meanwhile: MemoryMap<Offers>;
}

export class LeftCalls {
  readonly #parts: LeftCallsParts;
  #writes = 0;

  constructor(parts: LeftCallsParts) {
    this.#parts = parts;
  }

  async offer(digest: string, left: LeftCall): Promise<void> {
    const { clock, map, meanwhile } = this.#parts;
    const arrivedAgoMs = left.kind === 'place' ? clock.monotonic() - left.arrivedAt : 0;
    const offer = { name: left.kind === 'call' ? left.name : null, arrivedAgoMs, leftAgoMs: 0 };
    const add = (offers: Offers): Offers => [...offers, offer].slice(-maxLeftOfOne);
    if (!(await this.#change(map, digest, add))) await this.#change(meanwhile, digest, add);
  }

  /** The oldest, which is nobody else's from now on; `null` = there is none. */
  async take(digest: string): Promise<LeftCall | null> {
    const { clock, map, meanwhile } = this.#parts;
    for (const each of [meanwhile, map]) {
      let taken: Offer | undefined;
      const askedAt = clock.monotonic();
      const isTaken = await this.#change(each, digest, (offers) => {
        const usable = offers.filter(({ leftAgoMs }) => leftAgoMs <= leftKeptMs);
        taken = usable[0];
        return taken === undefined ? null : usable.slice(1);
      });
      if (!isTaken || taken === undefined) continue;
      const { name, arrivedAgoMs } = taken;
      return name === null ? { kind: 'place', arrivedAt: askedAt - arrivedAgoMs } : { kind: 'call', name };
    }
    return null;
  }

  /** Takes this call out. False when it was not there: somebody has taken it, or the map does not answer. */
  async withdraw(digest: string, name: string): Promise<boolean> {
    const { map, meanwhile } = this.#parts;
    const without = (offers: Offers): Offers | null => {
      const others = offers.filter((each) => each.name !== name);
      return others.length === offers.length ? null : others;
    };
    return (await this.#change(meanwhile, digest, without)) || (await this.#change(map, digest, without));
  }

  /** Writes what `next` makes of a list; `null` leaves it as it is. True when the list was written. */
  async #change(
    map: SharedMap<Offers>,
    digest: string,
    next: (offers: Offers) => Offers | null,
  ): Promise<boolean> {
    const newOwner = (): string => `${this.#parts.replica}.${(this.#writes += 1)}`;
    const life = { ttlMs: listMs, newOwner };
    return (await change(map, { name: digest }, life, (found) => next(offersIn(found)))) === 'changed';
  }
}

function offersIn(found: Entry<Offers> | null): Offers {
  if (found === null) return [];
  const ageMs = listMs - found.leftMs;
  return found.value.map(({ name, arrivedAgoMs, leftAgoMs }) => ({
    name,
    arrivedAgoMs: arrivedAgoMs + ageMs,
    leftAgoMs: leftAgoMs + ageMs,
  }));
}
