/**
 * How many leases a bucket may have over all its lanes: as configuration states, and as refusals teach that say that too many calls are
 * in flight. Part of the specification in `scheduler.policy.ts`.
 */
import type { Bucket } from './bucket-state.policy.ts';

/** What refusals taught goes up by one after so long without another of them: the upstream may take more again. Milliseconds. */
export const raiseEveryMs = 60_000;

/** `null` = any number. */
export function maxInFlightOf(
  { maxInFlight, learnedInFlight }: Pick<Bucket, 'maxInFlight' | 'learnedInFlight'>,
  now: number,
): number | null {
  if (learnedInFlight === null) return maxInFlight;
  const { max, at } = learnedInFlight;
  const learned = max + Math.max(0, Math.floor((now - at) / raiseEveryMs));
  return maxInFlight === null ? learned : Math.min(maxInFlight, learned);
}

/** True when the bucket has as many leases as it may have. */
export function isFull(bucket: Bucket, now: number): boolean {
  const max = maxInFlightOf(bucket, now);
  return max !== null && bucket.leases.size >= max;
}

/** The upstream refused a call that is in flight yet, because too many are: it took one fewer. */
export function learnFromRefusal(bucket: Bucket, now: number): void {
  const max = Math.min(bucket.leases.size - 1, maxInFlightOf(bucket, now) ?? Infinity);
  bucket.learnedInFlight = { max: Math.max(1, max), at: now };
}

// First calls: until a response has stated anything, only a few are on their way, as nobody knows whether the upstream takes them
// (docs/adr/0003).

/** Until the first response the number of probes doubles at this interval, so that a slow response delays no call for long. */
const probeDoublingMs = 250;
/** After so many doublings a million calls may go: more than wait anywhere. */
const maxDoublings = 20;

/** When the next probe may be sent; `now` or earlier = at once. */
export function nextFirstCallAt(bucket: Bucket, now: number): number {
  if (bucket.opened || bucket.probe <= 0 || bucket.probingSince === null) return now;
  const steps = Math.min(maxDoublings, Math.floor((now - bucket.probingSince) / probeDoublingMs));
  if (bucket.leases.size < bucket.probe * 2 ** steps) return now;
  return bucket.probingSince + (steps + 1) * probeDoublingMs;
}
