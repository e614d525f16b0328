/**
 * What admission takes and returns: the request to admit a call; the call's ticket, which lives from the first wait to the last
 * resend and does all waiting of the journey; and the lease, which permits one sending. And what the parts of admission share. Types only.
 */
import type { BreakerSubject, HeldTime, Reckoned } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { TicketId } from '../ids.ts';
import type { CeilingRef, CeilingState } from '../limiter/policy/ceiling.policy.ts';
import type { Ceilings } from '../limiter/ceiling-store.ts';
import type { Admission, Grant, Lesson, Reserving, Settlement } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import type { CallSettings } from './buckets.policy.ts';

/** What admission needs to know of a call. */
export interface AdmissionRequest {
  readonly admission: Omit<Admission, 'maxWaitMs' | 'position'>;
  /** What is kept of the call if it is refused; absent: nothing. */
  readonly reserving?: Omit<Reserving, 'ceiling' | 'waitMs'> & {
    /** What its client sends when it comes back. */
    readonly ticketOf: (id: TicketId) => string;
  };
  /** When this process received the call, monotonic milliseconds. It determines the call's position in its lane. */
  readonly arrivedAt: number;
  readonly ceiling: CeilingRef;
  /** As in {@link CallSettings}. */
  readonly mode: CallSettings['mode'];
  readonly yielded: CallSettings | null;
  /** In this process only: a reload finds the call's new settings by it and by the upstream of `subject`. */
  readonly workspaceId: string;
  /** Where the call goes. Finds the breakers that concern it. */
  readonly subject: BreakerSubject;
  /** How long the call may wait in all, milliseconds. */
  readonly maxWaitMs: number;
  /** The longest wait that the call could have asked for with `Prefer: wait`, milliseconds. */
  readonly maxWaitIfAskedMs: number;
  /** False once the caller's API key was removed or has expired: a waiting call is refused then. */
  readonly stillValid: () => boolean;
}

/** The bucket to which a call belongs, and its lane there. */
export type BucketLane = Pick<Admission, 'bucket' | 'lane'>;

/** Permission to send now: the bucket granted it and the ceiling's slot is taken. */
export interface Lease {
  readonly grant: Omit<Grant, 'expiresAt'>;
  /** State of the workspace's ceiling after this slot was taken; `null` without a minute ceiling. */
  readonly ceiling: CeilingState | null;
  /**
   * True while the call may still be sent under this lease. Judged by the monotonic clock, without asking the store
   * (self-fencing).
   */
  holds(): boolean;
  /** Reports what a response taught while its body is still under way. */
  learn(lesson: Lesson): void;
  /** Ends the lease; only the first call counts. `dropped` and `returned` also give the ceiling's slot back. */
  settle(settlement: Settlement, lesson: Lesson | null): void;
}

export interface Ticket {
  /**
   * Resolves with permission to send. Rejects with a `Refusal` when the call cannot leave any more, with the reason of the
   * abort when its client left, with the store's error when the store failed.
   */
  whenGranted(): Promise<Lease>;
  /**
   * What is left of the call's own wait, milliseconds. Its deadline may be later, for replies of the stores (`passageMs`).
   */
  remainingMs(): number;
  /** Its grant goes back for a cause that admission does not know; for `ms` milliseconds about. */
  heldOutside(cause: 'paused' | 'credential', ms: number): void;
  /** Milliseconds spent waiting so far, over all attempts. */
  waitedMs(): number;
  /** What held the call in the waits that are over, longest first; empty = nothing did. */
  held(): readonly HeldTime[];
  /** What limits would have done with a call that is only observed, as far as is known now; `null` = it is not known, or they hold it. */
  would(): Promise<Reckoned | null>;
  /** Ends the call in admission: its caller waits no more. The journey calls this on every path. */
  leave(): void;
}

export interface AdmissionParts {
  readonly clock: Clock;
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
  /** How long a granted lease lives without renewal, milliseconds. */
  readonly leaseMs: number;
  /** The bucket, and lane of it, into which the call's own bucket was joined; `null` = the call is in the right bucket. */
  readonly joinedBucketOf: (request: AdmissionRequest) => BucketLane | null;
  /** It is known what limits would have done with a call that is only observed. */
  readonly onReckoned: (request: AdmissionRequest, reckoned: Reckoned) => void;
  /** Lets a store's operation run while nobody waits for it; its failure is reported. */
  readonly detached: (work: Promise<unknown>) => void;
}
