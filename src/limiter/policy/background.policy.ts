/**
 * Background calls: they leave when no other call of the bucket can, but one a minute while any wait. Their lanes take turns with each
 * other. Part of the specification in `scheduler.policy.ts`, whose pump asks here who goes first.
 *
 * Keeps: from the moment another call waits, no background call takes what it waits for, but for that one a minute.
 */
import { isBackground, type LaneKey } from '../../ids.ts';
import type { Bucket, Lane, Lease } from './bucket-state.policy.ts';
import { twinIn } from './lanes.policy.ts';

/** While background calls wait, one leaves so often at least. Milliseconds. */
const oneEveryMs = 60_000;

/** None has left for so long that one has to leave before all others. */
export const isOneDue = ({ background }: Bucket, now: number): boolean =>
  background !== null && background.waiting > 0 && now - background.since >= oneEveryMs;

/** When one has to leave before all others; `null` = none waits, or it is due. */
export function nextOneDueAt({ background }: Bucket, now: number): number | null {
  if (background === null || background.waiting === 0) return null;
  const at = background.since + oneEveryMs;
  return at > now ? at : null;
}

/** How long one that comes now waits until it is due, if all that wait leave before it. Milliseconds. */
export function dueAfterMs({ background }: Bucket, now: number): number {
  if (background === null || background.waiting === 0) return oneEveryMs;
  return Math.max(0, background.since + oneEveryMs - now) + background.waiting * oneEveryMs;
}

/** True for a lane of those that go first now: those of the background go behind all others, until one of them is due. */
export const goesFirst = (bucket: Bucket, { key }: Pick<Lane, 'key'>, now: number): boolean =>
  isBackground(key) === isOneDue(bucket, now);

/**
 * True while other calls of this background lane's workspace wait and may not go: what holds them (the ceiling, mostly) is the
 * workspace's, and the next place is theirs.
 */
export function leavesToTwin(bucket: Bucket, key: LaneKey): boolean {
  const twin = twinIn(bucket, { key });
  return twin !== undefined && twin.line.size > 0 && twin.readyAs === null;
}

/** A call has entered the lane. */
export function noteEntered({ background }: Bucket, { key }: Lane, now: number): void {
  if (background !== null && background.waiting === 1 && isBackground(key)) background.since = now;
}

/** A call of the lane was granted. */
export function noteGranted({ background }: Bucket, { key }: Lane, lease: Lease): void {
  if (background === null || !isBackground(key)) return;
  lease.backgroundSince = background.since;
  background.since = lease.grantedAt;
}

/** The lease's call was not sent. */
export function noteNotSent({ background }: Bucket, { backgroundSince }: Lease): void {
  if (background !== null && backgroundSince !== undefined)
    background.since = Math.min(background.since, backgroundSince);
}

/** A lane that its ceiling holds until then wakes when one of its calls may be due: that one may take any slot. */
export function wakesAt(bucket: Bucket, { key }: Lane, until: number, now: number): number {
  const dueAt = isBackground(key) ? nextOneDueAt(bucket, now) : null;
  return dueAt === null ? until : Math.min(until, dueAt);
}
