/**
 * The port through which replicas agree on which buckets share a quota. Owns its words, and the store of one process. Every
 * name is a keyed digest. Does not own: when two buckets share one (`src/quotas/`), and moving calls (the limiter).
 */
import { LRUCache } from 'lru-cache';
import type { BucketKey } from '../ids.ts';

/** The calls of one bucket count against the quota of another one. */
export interface Joined {
  readonly bucket: BucketKey;
  readonly into: BucketKey;
}

/** Quotas and joined buckets that are remembered at most. */
export const maxQuotas = 10_000;

export interface QuotaStore {
  /**
   * The calls of `bucket` count against `quota`. Resolves with the bucket that stands for the quota: the one of which that was
   * said first. `unavailable`: Redis could not be asked.
   */
  claim(quota: string, bucket: BucketKey): Promise<BucketKey | 'unavailable'>;
  /** Registers the one listener to what other replicas have found. */
  listen(hear: (joined: Joined) => void): void;
}

/** The store of a single process: the first bucket of a quota stands for the quota. */
export function createEmbeddedQuotas(): QuotaStore {
  const owners = new LRUCache<string, BucketKey>({ max: maxQuotas });
  return {
    async claim(quota, bucket) {
      const owner = owners.get(quota) ?? bucket;
      owners.set(quota, owner);
      return owner;
    },
    listen: () => {},
  };
}
