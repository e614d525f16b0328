/**
 * Which bucket a workspace used last on an upstream, so that "when is the next slot" can be answered. Owns the memory and
 * its bound; refuses to own buckets. A workspace that uses several (models, shops) is answered for the last one.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';
import type { BucketSnapshot } from '../bucket.ts';
import type { BucketKey } from '../ids.ts';

/** Ceilings remembered; the one used longest ago is forgotten first. */
const maxCeilings = 10_000;
/** All buckets are read at once, and at most this often: a view of all workspaces asks for each. Milliseconds. */
const readGoodMs = 250;

export interface LastBuckets {
  /** A call under this ceiling enters this bucket. */
  used(ceiling: string, bucket: BucketKey): void;
  /** State of the bucket used last under this ceiling, or `null`. */
  of(ceiling: string): BucketSnapshot | null;
}

export function createLastBuckets(clock: Clock, snapshot: () => readonly BucketSnapshot[]): LastBuckets {
  const last = new LRUCache<string, BucketKey>({ max: maxCeilings });
  let read: { readonly at: number; readonly byKey: ReadonlyMap<BucketKey, BucketSnapshot> } | null = null;
  return {
    used(ceiling, bucket) {
      if (last.peek(ceiling) !== bucket) last.set(ceiling, bucket);
    },
    of(ceiling) {
      const bucket = last.get(ceiling);
      if (bucket === undefined) return null;
      const now = clock.monotonic();
      if (read === null || now - read.at >= readGoodMs) {
        read = { at: now, byKey: new Map(snapshot().map((each) => [each.bucket, each])) };
      }
      return read.byKey.get(bucket) ?? null;
    },
  };
}
