/**
 * A call's place in its lane, from the first wait to the last resend. The ticket does the waiting; there is no sleep
 * anywhere else in the journey.
 */
import type { CeilingRef, CeilingState, Place } from '../limiter/ceilings.ts';
import type { Admission, Grant, Lesson, Settlement } from '../limiter/limiter.ts';

/** What the desk needs to know of a call. */
export interface Entry {
  readonly admission: Omit<Admission, 'maxWaitMs' | 'position'>;
  /** Monotonic milliseconds at which this process had received the call: its position in its lane. */
  readonly arrivedAt: number;
  readonly ceiling: CeilingRef;
  /** In this process only: a reload finds the new settings by it. */
  readonly workspaceId: string;
  /** Name of the upstream. */
  readonly upstream: string;
  /** How long the call may wait in all, milliseconds. */
  readonly maxWaitMs: number;
  /** The longest wait that `Prefer: wait` could have got it, milliseconds. */
  readonly maxPreferMs: number;
  readonly clientGone: AbortSignal;
  /** False once the caller's key was removed or expired: a waiting call is refused then. */
  readonly stillValid: () => boolean;
}

/** Permission to send now: the bucket granted it and the ceiling's place is taken. */
export interface Lease {
  readonly grant: Grant;
  /** State of the workspace's ceiling after this place was taken; `null` without a minute ceiling. */
  readonly ceiling: CeilingState | null;
  /** Monotonic milliseconds at which waiting ended. */
  readonly grantedAt: number;
  /** True while the lease may still be acted upon (self-fence on the monotonic clock). */
  readonly holds: () => boolean;
  /** Tells what an answer taught while its body is still under way. */
  readonly learn: (lesson: Lesson) => void;
  /** Ends the lease; only the first call counts. `dropped` and `returned` also give the ceiling's place back. */
  readonly settle: (settlement: Settlement, lesson: Lesson | null) => void;
}

export interface Ticket {
  /** Resolves with permission to send; rejects with a `Refusal` when the call cannot leave any more. */
  granted(): Promise<Lease>;
  /** Milliseconds of its wait that are left. */
  remainingMs(): number;
  /** What was lost is not the call's fault: at least this much of its wait is left, milliseconds. */
  lengthen(ms: number): void;
  /** Milliseconds spent waiting so far, over all attempts. */
  waitedMs(): number;
  /** Leaves the line for good. Always called, on every path. */
  leave(): void;
}

export type { Place };
