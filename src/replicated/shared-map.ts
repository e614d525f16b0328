/**
 * A small map that all replicas see: entries that expire, each with an owner. Who wrote an entry may write it again; everybody else
 * replaces only what they have seen.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import type { Clock } from '../clock.ts';

export interface MapKey {
  /** A digest: the store sees it. */
  readonly name: string;
  /** Needed beside the label key to read the entry, and never seen by the store. Left out: the label key alone opens it. */
  readonly secret?: string;
}

export interface Entry<V> {
  readonly kind: 'entry';
  readonly value: V;
  readonly owner: string;
  /** Milliseconds until it expires. */
  readonly leftMs: number;
}

/** `unreadable`: there is an entry, which was not written under this key, or is damaged · `unavailable`: the store does not answer. */
export type Reading<V> = Entry<V> | { readonly kind: 'none' | 'unreadable' | 'unavailable' };

/** For {@link PutOptions.over}: whoever wrote the entry. */
export const anybody = '*';

export interface PutOptions {
  /** Opaque name of who writes, without blanks: up to 64 visible ASCII characters. */
  readonly owner: string;
  /** Life of the entry, milliseconds. */
  readonly ttlMs: number;
  /** Whose entry may be replaced beside the writer's own; `null` = nobody's. */
  readonly over: string | null;
}

/** `lost`: an entry of somebody else stays, here as it was read in the same instant. */
export type PutReply<V> =
  | { readonly kind: 'put' | 'unavailable' }
  | { readonly kind: 'lost'; readonly to: Exclude<Reading<V>, { kind: 'none' | 'unavailable' }> };

/** How values are written as bytes. Where bytes are no value, `read` returns `null` or throws. */
export interface Codec<V> {
  write(value: V): Buffer;
  read(bytes: Buffer): V | null;
}

/** What a feature wants of its map. */
export interface MapSpec<V> {
  /** Stands in keys and in the channel: a letter word and the version of the values' form, such as `token.2`. */
  readonly name: string;
  /** Left out: values are JSON. */
  readonly codec?: Codec<V>;
  /**
   * Hears of every entry that a replica writes, also this one, soon after; left out: nobody is told. Entries of such a map have no
   * secret of their own. In one process there is nobody to be told of.
   */
  readonly onChange?: (name: string, entry: Entry<V>) => void;
}

/** Makes the maps of a process: such as all replicas see, or in memory where there are no others. */
export type CreateMap = <V>(wanted: MapSpec<V>) => SharedMap<V>;

/** Every operation ends within a few seconds, and none rejects. */
export interface SharedMap<V> {
  read(key: MapKey): Promise<Reading<V>>;
  put(key: MapKey, value: V, options: PutOptions): Promise<PutReply<V>>;
  /** Deletes the entry if it is this owner's. */
  delete(key: MapKey, owner: string): Promise<void>;
}

/**
 * Writes what `next` makes of an entry's value (`null`: there is none that can be read); `null` leaves it as it is. Of those who change
 * an entry at once one succeeds, and the others are asked again with what it wrote.
 * @param newOwner a name for each attempt, never used twice
 */
export async function change<V>(
  map: SharedMap<V>,
  key: MapKey,
  { ttlMs, newOwner }: { readonly ttlMs: number; readonly newOwner: () => string },
  next: (found: Entry<V> | null) => V | null,
): Promise<'changed' | 'kept' | 'unavailable'> {
  for (let read: Reading<V> = await map.read(key); read.kind !== 'unavailable';) {
    const value = next(read.kind === 'entry' ? read : null);
    if (value === null) return 'kept';
    const over = read.kind === 'entry' ? read.owner : read.kind === 'none' ? null : anybody;
    const reply = await map.put(key, value, { owner: newOwner(), ttlMs, over });
    if (reply.kind === 'put') return 'changed';
    read = reply.kind === 'lost' ? reply.to : { kind: 'unavailable' };
  }
  return 'unavailable';
}

/** The map of a single process. Its values are kept as they are. */
export class MemoryMap<V> implements SharedMap<V> {
  readonly #clock: Pick<Clock, 'monotonic'>;
  /** The entry that was used longest ago first. */
  readonly #entries: LRUCache<string, { readonly value: V; readonly owner: string; readonly endsAt: number }>;

  /** Of more than `maxEntries` entries, those go that were used longest ago. */
  constructor(clock: Pick<Clock, 'monotonic'>, maxEntries = 20_000) {
    this.#clock = clock;
    this.#entries = new LRUCache(atMost(maxEntries));
  }

  read({ name }: MapKey): Promise<Reading<V>> {
    return Promise.resolve(this.#find(name) ?? { kind: 'none' });
  }

  put({ name }: MapKey, value: V, { owner, ttlMs, over }: PutOptions): Promise<PutReply<V>> {
    const found = this.#find(name);
    if (found !== null && over !== anybody && found.owner !== owner && found.owner !== over)
      return Promise.resolve({ kind: 'lost', to: found });
    this.#entries.set(name, { value, owner, endsAt: this.#clock.monotonic() + ttlMs });
    return Promise.resolve({ kind: 'put' });
  }

  delete({ name }: MapKey, owner: string): Promise<void> {
    if (this.#find(name)?.owner === owner) this.#entries.delete(name);
    return Promise.resolve();
  }

  #find(name: string): Entry<V> | null {
    const entry = this.#entries.get(name);
    if (entry === undefined) return null;
    const leftMs = entry.endsAt - this.#clock.monotonic();
    if (leftMs > 0) return { kind: 'entry', value: entry.value, owner: entry.owner, leftMs };
    this.#entries.delete(name);
    return null;
  }
}
