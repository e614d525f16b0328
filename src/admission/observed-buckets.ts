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

export class ObservedBuckets {
  readonly #differs = new LRUCache<BucketKey, number>({ max: maxBuckets });
  readonly #serviceMs = new LRUCache<BucketKey, number>({ max: maxBuckets });

  /** A call was sent that limits would have held until `until` at most (monotonic milliseconds), or refused. */
  noteHeld(bucket: BucketKey, until: number): void {
    this.#differs.set(bucket, Math.max(this.#differs.get(bucket) ?? until, until + rememberedMs));
  }

  /** True while what the upstream says of its use is not true of what is reckoned. */
  differs(bucket: BucketKey, now: number): boolean {
    return (this.#differs.get(bucket) ?? now) > now;
  }

  /** The upstream has served a call within so many milliseconds. */
  noteServed(bucket: BucketKey, ms: number): void {
    const known = this.#serviceMs.get(bucket) ?? ms;
    this.#serviceMs.set(bucket, known + (ms - known) * latestShare);
  }

  /** The time that the upstream takes for a call, milliseconds; 0 = not known. */
  usualMs(bucket: BucketKey): number {
    return this.#serviceMs.get(bucket) ?? 0;
  }
}
