/**
 * How many leases a bucket may have over all its lanes: as configuration states, and as refusals teach that say that too many calls are
 * in flight. Part of the specification in `scheduler.policy.ts`.
 */
import { allWaiting, type Bucket, type Lease } from './bucket-state.policy.ts';

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

// First calls: how many may be on their way while nobody knows whether the upstream takes them: probes of a bucket of which no response has
// stated anything yet (docs/adr/0003), and a pilot where a crowd waits after a silence.

/** Until the first response the number of probes doubles at this interval, so that a slow response delays no call for long. */
const probeDoublingMs = 250;
/** After so many doublings a million calls may go: more than wait anywhere. */
const maxDoublings = 20;
/** After so long without a grant the upstream may have closed the bucket unnoticed. Milliseconds. */
export const silenceMs = 10_000;
/**
 * How long the others wait at most for the response to a pilot, milliseconds. Refusals come faster than that; and as it is a
 * hundredth of the silence, pilots cost at most 1 % of time.
 */
export const pilotMs = 100;
/** Fewer waiting calls than this need no pilot, because a closed upstream could refuse only few of them. */
export const pilotCrowd = 8;

/** When the rules for first calls (probes, pilot) let the next call be sent; `now` or earlier = at once. */
export const nextFirstCallAt = (bucket: Bucket, now: number): number =>
  Math.max(probeTime(bucket, now), pilotTime(bucket, now));

/** When the next probe may be sent: before the first response only a few calls may be on their way. */
function probeTime(bucket: Bucket, now: number): number {
  if (bucket.opened || bucket.probe <= 0 || bucket.probingSince === null) return now;
  const steps = Math.min(maxDoublings, Math.floor((now - bucket.probingSince) / probeDoublingMs));
  if (bucket.leases.size < bucket.probe * 2 ** steps) return now;
  return bucket.probingSince + (steps + 1) * probeDoublingMs;
}

/** When the calls behind a pilot may be sent. Nothing was granted after the pilot, so `lastGrantAt` is the time of its grant. */
function pilotTime(bucket: Bucket, now: number): number {
  const { pilotAfter, lastGrantAt } = bucket;
  if (pilotAfter === null || lastGrantAt === null || allWaiting(bucket) < pilotCrowd) return now;
  return lastGrantAt + pilotMs;
}

/** Called when a call was granted and has left its line: after a silence it is the pilot of the calls that wait. */
export function notePilot(bucket: Bucket, now: number): void {
  const { lastGrantAt } = bucket;
  const isAfterSilence = lastGrantAt !== null && now - lastGrantAt >= silenceMs;
  bucket.pilotAfter = isAfterSilence && allWaiting(bucket) >= pilotCrowd ? lastGrantAt : null;
}

/** The outcome of the lease's call is known. If it was the pilot, the others need not wait for it any more. */
export function endPilot(bucket: Bucket, { grantedAt }: Lease): void {
  if (grantedAt === bucket.lastGrantAt) bucket.pilotAfter = null;
}

/** The lease's call was not sent. If it was the pilot, the silence goes on, and the next granted call is the pilot. */
export function recallPilot(bucket: Bucket, { grantedAt }: Lease): void {
  if (bucket.pilotAfter !== null && grantedAt === bucket.lastGrantAt) bucket.lastGrantAt = bucket.pilotAfter;
}
