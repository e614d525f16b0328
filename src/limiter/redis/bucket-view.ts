/**
 * A bucket as the replies of Redis described it last: which life of its data this is, until when it is closed, its meters.
 *
 * Owns: recognizing an overtaken reply, how long nobody may be sent. Does not own: what follows from that
 * (`bucket-session.ts`). Data and comparisons only.
 */
import { Closing, laterOf } from './closing.ts';
import type { BucketSetting } from '../limiter.ts';
import { MeterReadings } from './meter-readings.ts';
import type { BucketReply } from './protocol/reply-codec.ts';

/** After a loss every replica has noticed it within a tick and has entered its tickets again. Milliseconds. */
export const recoveryGraceMs = 1_300;

/** When Redis wrote a reply (its clock), and when the answered command was sent (monotonic milliseconds). */
export interface ReplyTime {
  readonly now: number;
  readonly sentAt: number;
}

export class BucketView {
  readonly closing = new Closing();
  readonly readings = new MeterReadings();
  /** Monotonic milliseconds of the latest use: when the latest answered command was sent. */
  usedAt: number;
  /** The operator's setting that this replica sent last. */
  setting: BucketSetting | null = null;
  /** Creation of the bucket's data on Redis' clock, as named last; `null` = not known. */
  createdAt: number | null = null;
  /** Monotonic milliseconds of the latest loss of the bucket's data; `null` = none seen. */
  lostAt: number | null = null;
  /** Monotonic milliseconds of the latest loss that concerned this bucket alone; `null` = none seen. */
  lostAloneAt: number | null = null;
  /** How many losses of Redis' data were known at the last reply for the bucket. */
  losses = 0;
  /** Times of the latest reply that was not overtaken. Its `now` is comparable only within one life of the bucket's data. */
  latest: ReplyTime | null = null;
  /** Grants that Redis made before this time are returned: other replicas had not entered their tickets. Monotonic milliseconds. */
  resumeAt: number | null = null;

  constructor(now: number) {
    this.usedAt = now;
  }

  /** True for a reply that Redis wrote before the latest one that was read, in the same life of the bucket's data. */
  isOvertaken({ createdAt, now }: BucketReply): boolean {
    return createdAt === this.createdAt && this.latest !== null && now < this.latest.now;
  }

  /** Redis has forgotten that the bucket is closed, but the upstream still refuses: nothing is sent until the known time. */
  keepClosed(): void {
    if (this.closing.until !== null) this.holdUntil(this.closing.until);
  }

  /** An operator opens the bucket. A hold that follows a loss of data goes on, for `recoveryGraceMs` at most. */
  reopen(now: number): void {
    this.closing.reopen(now);
    if (this.resumeAt !== null) this.resumeAt = Math.min(this.resumeAt, now + recoveryGraceMs);
  }

  holdUntil(at: number): void {
    this.resumeAt = laterOf(this.resumeAt, at);
  }
}
