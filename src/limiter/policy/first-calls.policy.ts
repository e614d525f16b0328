/**
 * How many calls may be on their way while nobody knows whether the upstream takes them: probes of a bucket of which no
 * answer has stated anything yet (docs/adr/0003), and a pilot where a crowd waits after a silence (docs/adr/0022). Part of
 * the specification in `scheduler.policy.ts`.
 */
import type { Bucket, Lease } from './bucket-state.policy.ts';

/** Without any answer the number of probes doubles this often, so that a slow first answer holds nobody for long. */
export const probeDoublingMs = 250;
/** A bucket that granted nothing for this long may have been closed meanwhile without anybody knowing. Milliseconds. */
export const silenceMs = 10_000;
/**
 * The others wait this long at most for the answer to a pilot: refusals come at once, and it is a hundredth of the silence,
 * which is all the time that pilots can cost. Milliseconds.
 */
export const pilotMs = 100;
/** Fewer waiting calls than this need no pilot: what a closed upstream would refuse of them is little. */
export const pilotCrowd = 8;

/** When the rules for first calls (probes, pilot) let the next call be sent; `now` or earlier = at once. */
export const nextFirstCallAt = (bucket: Bucket, now: number): number =>
  Math.max(probeTime(bucket, now), pilotTime(bucket, now));

/** Before the first answer only a few calls may be on their way. */
function probeTime(bucket: Bucket, now: number): number {
  if (bucket.opened || bucket.probe <= 0 || bucket.probingSince === null) return now;
  const steps = Math.min(20, Math.floor((now - bucket.probingSince) / probeDoublingMs));
  if (bucket.leases.size < bucket.probe * 2 ** steps) return now;
  return bucket.probingSince + (steps + 1) * probeDoublingMs;
}

/** Nothing was granted since the pilot, so that `lastGrantAt` is the time of its grant. */
function pilotTime({ pilotAfter, lastGrantAt, waiting }: Bucket, now: number): number {
  if (pilotAfter === null || lastGrantAt === null || waiting < pilotCrowd) return now;
  return lastGrantAt + pilotMs;
}

/** Called when a call was granted and has left its line: after a silence it is the pilot of the calls that wait. */
export function notePilot(bucket: Bucket, now: number): void {
  const { lastGrantAt, waiting } = bucket;
  const isAfterSilence = lastGrantAt !== null && now - lastGrantAt >= silenceMs;
  bucket.pilotAfter = isAfterSilence && waiting >= pilotCrowd ? lastGrantAt : null;
}

/** The outcome of the lease's call is known. If it was the pilot, the others need not wait for it any more. */
export function endPilot(bucket: Bucket, { grantedAt }: Lease): void {
  if (grantedAt === bucket.lastGrantAt) bucket.pilotAfter = null;
}

/** The lease's call was not sent. If it was the pilot, the silence goes on, and the next granted call is the pilot. */
export function recallPilot(bucket: Bucket, { grantedAt }: Lease): void {
  if (bucket.pilotAfter !== null && grantedAt === bucket.lastGrantAt) bucket.lastGrantAt = bucket.pilotAfter;
}
