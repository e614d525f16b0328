/** A lease of this replica, from the grant to its settlement: its data and its states. */
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
  /** Admission of the lease's ticket; `null` = no call waits for the lease here. */
  readonly admission: Admission | null;
}

export type LeaseState =
  /** Its call has it, or is about to get it. */
  | { readonly kind: 'held' }
  /**
   * The grant is kept from its call (a new epoch). `cancel` stops what puts it back. It is put back also when it has been lost
   * meanwhile: then its ticket is entered again.
   */
  | { readonly kind: 'quarantined'; readonly cancel: () => void; readonly isLost: boolean }
  /** Redis lost the lease, or this process noticed too late that it ran out. */
  | { readonly kind: 'lost' };

const held: LeaseState = { kind: 'held' };
const lost: LeaseState = { kind: 'lost' };

export class HeldLease implements Grant {
  readonly ticket: TicketId;
  readonly bucket: BucketKey;
  readonly lane: LaneKey;
  readonly lease: LeaseToken;
  /** The lane has a cap: another lease at the same time would be an overlap. */
  readonly isCapped: boolean;
  /** What its call takes from the bucket. */
  readonly costs: Costs;
  expiresAt: number;
  state: LeaseState = held;

  constructor({ bucket, grant, expiresAt, admission }: LeaseStart) {
    this.ticket = grant.ticket;
    this.bucket = bucket;
    this.lane = grant.lane;
    this.lease = grant.lease;
    this.isCapped = admission !== null && admission.maxInFlight !== null;
    this.costs = admission?.costs ?? {};
    this.expiresAt = expiresAt;
  }

  get isLost(): boolean {
    return this.state.kind === 'lost' || (this.state.kind === 'quarantined' && this.state.isLost);
  }

  /** Redis lost the lease, or it ran out. A grant that is kept from its call stays so. */
  lose(): void {
    this.state = this.state.kind === 'quarantined' ? { ...this.state, isLost: true } : lost;
  }

  /** `cancel` stops what is to put the grant back. */
  quarantine(cancel: () => void): void {
    this.state = { kind: 'quarantined', cancel, isLost: this.isLost };
  }

  /** Ends the quarantine, if there is one: nothing puts the grant back any more. */
  endQuarantine(): void {
    if (this.state.kind !== 'quarantined') return;
    this.state.cancel();
    this.state = this.isLost ? lost : held;
  }
}
