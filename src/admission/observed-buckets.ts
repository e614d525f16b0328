/**
 * What the reckoning knows of each bucket whose calls limits do not hold: whether the upstream sees other traffic than is reckoned, and how
 * long it takes for calls that it does not refuse.
 */
import { LRUCache } from 'lru-cache';
import type { BucketKey } from '../ids.ts';

const maxBuckets = 10_000;
/** How long an upstream remembers a call, milliseconds: most quotas are those of a minute. */
const rememberedMs = 60_000;
/** The weight of the latest call in the mean time, as TCP estimates round trips (RFC 6298). */
const latestShare = 1 / 8;

interface ObservedBucket {
  /** Until when what the upstream says of its use is not true of what is reckoned, monotonic milliseconds; `null` = it is true. */
  differsUntil: number | null;
  /** Mean time of a call that was served, milliseconds; `null` = none was. */
  serviceMs: number | null;
}

export class ObservedBuckets {
  readonly #buckets = new LRUCache<BucketKey, ObservedBucket>({ max: maxBuckets });

  /** A call was sent that limits would have held until `until` at most (monotonic milliseconds), or refused. */
  noteHeld(bucket: BucketKey, until: number): void {
    const known = this.#of(bucket);
    known.differsUntil = Math.max(known.differsUntil ?? until, until + rememberedMs);
  }

  differs(bucket: BucketKey, now: number): boolean {
    return (this.#of(bucket).differsUntil ?? now) > now;
  }

  noteServed(bucket: BucketKey, ms: number): void {
    const known = this.#of(bucket);
    known.serviceMs = known.serviceMs === null ? ms : known.serviceMs + (ms - known.serviceMs) * latestShare;
  }

  /** The time that the upstream takes for a call, milliseconds; 0 = not known. */
  usualMs(bucket: BucketKey): number {
    return this.#of(bucket).serviceMs ?? 0;
  }

  #of(bucket: BucketKey): ObservedBucket {
    let known = this.#buckets.get(bucket);
    if (known === undefined) this.#buckets.set(bucket, (known = { differsUntil: null, serviceMs: null }));
    return known;
  }
}
