/**
 * A small map that all replicas see: entries that expire, each with an owner. Who wrote an entry may write it again; everybody else
 * replaces only what they have seen.
 */
import { LRUCache } from 'lru-cache';
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

/** Every operation ends within a few seconds, and none rejects. */
export interface SharedMap<V> {
  read(key: MapKey): Promise<Reading<V>>;
  put(key: MapKey, value: V, options: PutOptions): Promise<PutReply<V>>;
  /** Deletes the entry if it is this owner's. */
  delete(key: MapKey, owner: string): Promise<void>;
}

/** The map of a single process. Its values are kept as they are. */
export class MemoryMap<V> implements SharedMap<V> {
  readonly #clock: Pick<Clock, 'monotonic'>;
  /** The entry that was used longest ago first. */
  readonly #entries: LRUCache<string, { readonly value: V; readonly owner: string; readonly endsAt: number }>;

  /** Of more than `maxEntries` entries, those go that were used longest ago. */
  constructor(clock: Pick<Clock, 'monotonic'>, maxEntries = 100_000) {
    this.#clock = clock;
    this.#entries = new LRUCache({ max: maxEntries });
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
