/**
 * The request to be admitted, which admission takes; and what it returns: the call's ticket, from the first wait to the last
 * resend, and the lease to send once. Types only. The ticket does all waiting of the journey.
 */
import type { BreakerSubject } from '../call.ts';
import type { CeilingRef, CeilingState } from '../limiter/ceilings.ts';
import type { Admission, Grant, Lesson, Settlement } from '../limiter/limiter.ts';

/** What admission needs to know of a call. */
export interface AdmissionRequest {
  readonly admission: Omit<Admission, 'maxWaitMs' | 'position' | 'leaseMs'>;
  /** Monotonic milliseconds at which this process had received the call: its position in its lane. */
  readonly arrivedAt: number;
  readonly ceiling: CeilingRef;
  /** Whose call it is, and the upstream's name, in this process only: a reload finds the new settings by them. */
  readonly workspaceId: string;
  readonly upstream: string;
  /** What an upstream's refusal may concern while the call waits. */
  readonly subject: BreakerSubject;
  /** How long the call may wait in all, milliseconds. */
  readonly maxWaitMs: number;
  /** The longest wait that the call could have asked for with `Prefer: wait`, milliseconds. */
  readonly maxPreferMs: number;
  /** False once the caller's key was removed or expired: a waiting call is refused then. */
  readonly stillValid: () => boolean;
}

/** The bucket to which a call belongs, and its lane there. */
export type BucketLane = Pick<Admission, 'bucket' | 'lane'>;

/** Permission to send now: the bucket granted it and the ceiling's slot is taken. */
export interface Lease {
  readonly grant: Grant;
  /** State of the workspace's ceiling after this slot was taken; `null` without a minute ceiling. */
  readonly ceiling: CeilingState | null;
  /** True while the lease may still be acted upon (self-fence on the monotonic clock). */
  holds(): boolean;
  /** Reports what an answer taught while its body is still under way. */
  learn(lesson: Lesson): void;
  /** Ends the lease; only the first call counts. `dropped` and `returned` also give the ceiling's slot back. */
  settle(settlement: Settlement, lesson: Lesson | null): void;
}

export interface Ticket {
  /**
   * Resolves with permission to send. Rejects with a `Refusal` when the call cannot leave any more, with the reason of the
   * abort when its client left, with the store's error when the store failed.
   */
  granted(): Promise<Lease>;
  /** What is left of the call's own wait, milliseconds; the time that its deadline adds for stores' replies is not part of it. */
  remainingMs(): number;
  /** Allows another grant within so many milliseconds, whatever is left of the wait: an attempt failed through no fault of the call. */
  lengthen(ms: number): void;
  /** Milliseconds spent waiting so far, over all attempts. */
  waitedMs(): number;
  /** Ends the call in admission: it is in no lane afterwards. The journey calls this on every path. */
  leave(): void;
}
