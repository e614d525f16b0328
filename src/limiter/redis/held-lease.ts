/** A lease of this replica, from the grant to its settlement. Data only. */
import type { Costs } from '../../call.ts';
import type { Admission, BucketKey, Grant, LaneKey, LeaseToken, TicketId } from '../limiter.ts';
import type { GrantReply } from './protocol/message-codec.ts';

/** A lease counts as lost this long before Redis counts it as lost: a tick and its reply. Milliseconds. */
export const leaseMarginMs = 2_000;

export interface LeaseStart {
  readonly bucket: BucketKey;
  /** As the store named it. */
  readonly grant: Omit<GrantReply, 'expiresAt'>;
  /** Monotonic milliseconds. */
  readonly expiresAt: number;
  /** Of the ticket that the lease belongs to; `null` = nobody waits for it here. */
  readonly admission: Admission | null;
}

/** A lease of this replica, from the grant to its settlement. */
export class HeldLease implements Grant {
  readonly ticket: TicketId;
  readonly bucket: BucketKey;
  readonly lane: LaneKey;
  readonly lease: LeaseToken;
  readonly leaseMs: number;
  /** The lane has a cap: another lease at the same time would be an overlap. */
  readonly isCapped: boolean;
  /** What its call takes from the bucket. */
  readonly costs: Costs;
  expiresAt: number;
  /** Redis lost the lease, or this process noticed too late that it ran out: counted once. */
  isLost = false;
  /** Set while the grant is kept from its call (a new epoch): cancels the timer that hands it over. */
  cancelQuarantine: (() => void) | null = null;

  constructor({ bucket, grant, expiresAt, admission }: LeaseStart) {
    this.ticket = grant.ticket;
    this.bucket = bucket;
    this.lane = grant.lane;
    this.lease = grant.lease;
    this.leaseMs = admission?.leaseMs ?? 0;
    this.isCapped = admission !== null && admission.maxInFlight !== null;
    this.costs = admission?.costs ?? {};
    this.expiresAt = expiresAt;
  }
}
