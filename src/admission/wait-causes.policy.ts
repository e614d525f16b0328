/**
 * What has held a lane, as milliseconds by cause, and how much of that one call was there for. A lane has one timeline for all its
 * calls, because calls behind others are held by what holds the first of them. Pure.
 *
 * Does not own: what the cause is now (`wait-causes.ts`).
 */
import type { HeldTime, WaitCause } from '../call.ts';
import { heldByReasons } from '../errors.ts';

/** Milliseconds by cause; absent = 0. */
export type MsByCause = Readonly<Partial<Record<WaitCause, number>>>;

/** What has held the first call of a lane while calls waited in it. */
export interface CauseTimeline {
  /** What holds it since then (monotonic milliseconds); `null` = no call waits, or it is not known yet. */
  readonly present: { readonly cause: WaitCause; readonly since: number } | null;
  readonly past: MsByCause;
}

export const emptyTimeline: CauseTimeline = { present: null, past: {} };

/** The timeline with `cause` from now on; `null` = nothing is known, or nothing waits. */
export function noted(timeline: CauseTimeline, cause: WaitCause | null, now: number): CauseTimeline {
  if (cause === (timeline.present?.cause ?? null)) return timeline;
  return { present: cause === null ? null : { cause, since: now }, past: totalsAt(timeline, now) };
}

const totalsAt = ({ present, past }: CauseTimeline, now: number): MsByCause =>
  present === null ? past : plus(past, present.cause, now - present.since);

const plus = (some: MsByCause, cause: WaitCause, ms: number): MsByCause => ({
  ...some,
  [cause]: (some[cause] ?? 0) + ms,
});

/** What has held one call, over all its waits. */
export interface CallHeld {
  /** Of the wait under way: the totals of the lane when it began. `null` = the call does not wait. */
  readonly from: MsByCause | null;
  /** In the waits that are over. */
  readonly past: MsByCause;
  /** What held it last. */
  readonly cause: WaitCause;
}

/** A call that nothing is known of is held by its bucket. */
const unheld: CallHeld = { from: null, past: {}, cause: 'requests' };

/** The call begins to wait. @param held `null` = it never waited. */
export const beginsToWait = (held: CallHeld | null, timeline: CauseTimeline, now: number): CallHeld => ({
  ...(held ?? unheld),
  from: totalsAt(timeline, now),
});

/** The call waits no longer. */
export function waitsNoLonger(held: CallHeld, timeline: CauseTimeline, now: number): CallHeld {
  const from = held.from ?? {};
  const totals = totalsAt(timeline, now);
  let { past } = held;
  for (const cause of waitCauses) {
    const ms = (totals[cause] ?? 0) - (from[cause] ?? 0);
    if (ms > 0) past = plus(past, cause, ms);
  }
  return { from: null, past, cause: timeline.present?.cause ?? held.cause };
}

const waitCauses = heldByReasons.filter((reason) => reason !== 'queue');

/** Causes that held a call for less are not told, milliseconds. */
const minToldMs = 1;

/**
 * What held a call whose waits are over, longest first. What of `waitedMs` no cause was known for goes to the last one, so that the sum
 * is `waitedMs` but for causes of less than a millisecond. @param held `null` = it was in no lane.
 */
export function heldTimes(held: CallHeld | null, waitedMs: number): readonly HeldTime[] {
  if (held === null) return [];
  const known = waitCauses.reduce((sum, cause) => sum + (held.past[cause] ?? 0), 0);
  const whole = plus(held.past, held.cause, Math.max(0, waitedMs - known));
  return waitCauses
    .map((cause) => ({ cause, ms: whole[cause] ?? 0 }))
    .filter(({ ms }) => ms >= minToldMs)
    .toSorted((one, other) => other.ms - one.ms);
}
