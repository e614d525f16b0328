/**
 * Which bucket a workspace used last on an upstream, so that "when is the next slot" can be answered. Owns the memory and
 * its bound; does not own buckets. A workspace that uses several (models, shops) is answered for the last one.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';
import type { BucketSnapshot } from '../bucket.ts';
import type { BucketKey, CeilingKey } from '../ids.ts';

/** Ceilings remembered; the one used longest ago is forgotten first. */
const maxCeilings = 10_000;
/** All buckets are read at once, and at most this often: a view of all workspaces asks for each. Milliseconds. */
const readGoodMs = 250;

interface Reading {
  readonly at: number;
  readonly byKey: ReadonlyMap<BucketKey, BucketSnapshot>;
}

export class LastBuckets {
  readonly #clock: Clock;
  readonly #snapshot: () => readonly BucketSnapshot[];
  readonly #last = new LRUCache<CeilingKey, BucketKey>({ max: maxCeilings });
  #reading: Reading | null = null;

  constructor(clock: Clock, snapshot: () => readonly BucketSnapshot[]) {
    this.#clock = clock;
    this.#snapshot = snapshot;
  }

  /** A call under this ceiling enters this bucket. */
  used(key: CeilingKey, bucket: BucketKey): void {
    if (this.#last.peek(key) !== bucket) this.#last.set(key, bucket);
  }

  /** State of the bucket used last under this ceiling, or `null`. */
  of(key: CeilingKey): BucketSnapshot | null {
    const bucket = this.#last.get(key);
    return bucket === undefined ? null : (this.#read().byKey.get(bucket) ?? null);
  }

  #read(): Reading {
    const now = this.#clock.monotonic();
    if (this.#reading === null || now - this.#reading.at >= readGoodMs) {
      this.#reading = { at: now, byKey: new Map(this.#snapshot().map((each) => [each.bucket, each])) };
    }
    return this.#reading;
  }
}
