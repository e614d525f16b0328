/**
 * What the latest responses say of each bucket, as far as this replica knows. How long the upstream takes to begin them: a call that is
 * held until just before its client hangs up would be answered too late. And whether it serves most calls: a refusal that meets one call
 * only says nothing of the others. What is made of it: `preferences.policy.ts`, `dispatch/resend.policy.ts`.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';

const maxBuckets = 10_000;
/** The weights of a new time, as TCP estimates round trips (RFC 6298 §2): an eighth in the mean, a quarter in the deviation. */
const weights = { mean: 1 / 8, deviation: 1 / 4 };
/** The weight of one attempt in the share of those that were refused: a window of a limit serves dozens of calls. */
const refusedWeight = 1 / 32;
/** Where a larger share of late is refused, the refusals lie in the bucket, and not in single calls. */
const maxSingleShare = 1 / 8;

export class RecentResponses {
  readonly #buckets = new LRUCache<
    string,
    { meanMs: number; deviationMs: number; servedAt: number; refusedShare: number }
  >(atMost(maxBuckets));

  /** Notes that a call that was sent at `sentAt` was served: its response's head arrived at `headAt`. Monotonic milliseconds. */
  noteServed(bucket: string, sentAt: number, headAt: number): void {
    const ms = headAt - sentAt;
    const known = this.#buckets.get(bucket);
    if (known === undefined) {
      this.#buckets.set(bucket, { meanMs: ms, deviationMs: ms / 2, servedAt: sentAt, refusedShare: 0 });
      return;
    }
    known.servedAt = Math.max(known.servedAt, sentAt);
    known.refusedShare *= 1 - refusedWeight;
    known.deviationMs += weights.deviation * (Math.abs(ms - known.meanMs) - known.deviationMs);
    known.meanMs += weights.mean * (ms - known.meanMs);
  }

  /** Notes that a call was refused, and no time was named. */
  noteRefused(bucket: string): void {
    const known = this.#buckets.get(bucket);
    if (known !== undefined) known.refusedShare += refusedWeight * (1 - known.refusedShare);
  }

  /** True when a call has been served that was sent after this time, and few of the latest were refused. Monotonic milliseconds. */
  servesOthersSince(bucket: string, at: number): boolean {
    const known = this.#buckets.get(bucket);
    return known !== undefined && known.servedAt > at && known.refusedShare <= maxSingleShare;
  }

  /** The time within which most responses of the bucket begin, milliseconds; 0 while none is known. */
  usualMs(bucket: string): number {
    const known = this.#buckets.get(bucket);
    return known === undefined ? 0 : known.meanMs + 2 * known.deviationMs;
  }
}
