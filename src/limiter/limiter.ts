/**
 * The limiter port: what the journey asks of the state that all replicas share. Two stores keep it, the embedded one
 * (`memory-limiter.ts`, which runs `scheduler.policy.ts` itself) and Redis (whose scripts mirror it). Both give the
 * same answers (invariant 12).
 *
 * A call asks to be admitted into a bucket, gets a grant now or later through `onGrant`, and ends the grant's lease
 * exactly once with `settle`. Waiting happens here; timers of the caller's own deadline do not.
 */
import type { Feedback, MeterName, Costs } from '../call.ts';

/** Opaque keyed digest naming a bucket; safe for Redis and logs. */
export type BucketKey = string;
/** Opaque keyed digest naming a workspace inside a bucket. */
export type LaneKey = string;

/** Stated or default limit of one meter, used until an answer teaches better. */
export interface MeterSetting {
  readonly meter: MeterName;
  /** Capacity in units. */
  readonly limit: number;
  /** Time in which `limit` units drain, milliseconds. */
  readonly windowMs: number;
}

/** Properties of the bucket, sent along with every admission so that the store needs no configuration of its own. */
export interface BucketSetting {
  readonly meters: readonly MeterSetting[];
  /** False: reported limits never raise a stated one. */
  readonly learn: boolean;
  /** Grants outstanding before the first answer taught the level; 0 = the bucket starts open. */
  readonly probe: number;
}

/** A call asking to enter its lane. */
export interface Admission {
  readonly ticket: string;
  readonly bucket: BucketKey;
  readonly setting: BucketSetting;
  readonly lane: LaneKey;
  /** Share of the bucket relative to the other lanes; > 0. */
  readonly weight: number;
  /** Grants in flight per lane; `null` = unlimited. */
  readonly maxInFlight: number | null;
  /** Tickets waiting in the lane at most. */
  readonly maxQueued: number;
  /** RFC 9218 urgency 0 (first) to 7; 3 is normal. Orders within the lane only. */
  readonly urgency: number;
  /** Which meters the call takes from, as a word; all tickets of one class in one bucket use the same meters. */
  readonly callClass: string;
  readonly costs: Costs;
  /** How long the call may still wait, milliseconds. Beyond it the admission is refused at once. */
  readonly maxWaitMs: number;
  /** How long a granted lease lives without renewal, milliseconds. */
  readonly leaseMs: number;
  /** Place in the lane when a ticket is entered again after the store lost it; `null` = at the end of its urgency. */
  readonly order: number | null;
}

/** Permission to send one ticket now. */
export interface Grant {
  readonly ticket: string;
  readonly bucket: BucketKey;
  readonly lane: LaneKey;
  /** Owner token: only its holder can settle. */
  readonly lease: string;
  /** Monotonic milliseconds of this process after which the lease must be taken for lost. */
  readonly expiresAt: number;
}

/** Answer to an admission. */
export type AdmissionReply =
  | { readonly kind: 'granted'; readonly grant: Grant }
  /** Waiting: `forecastMs` is the expected wait, `ahead` how many tickets of the lane go first. */
  | { readonly kind: 'queued'; readonly forecastMs: number; readonly ahead: number }
  | {
      readonly kind: 'refused';
      readonly reason: 'queue_full' | 'wait_too_long' | 'day_quota_exhausted' | 'limiter_unavailable';
      readonly retryInMs: number;
    };

/** How a lease ends. Times ago are measured on the holder's monotonic clock. */
export type Settlement =
  /** The upstream answered; the call is done. `spent` corrects reserved units where the final charge is known. */
  | { readonly kind: 'succeeded'; readonly spent: Costs | null }
  /** The upstream refused to run it. `requeue` puts the ticket back at its place; `closeMs` closes the bucket for all. */
  | {
      readonly kind: 'throttled';
      readonly closeMs: number;
      readonly requeue: boolean;
      /** The lane alone waits this long (back-off that concerns only this call); 0 = not at all. */
      readonly sleepMs: number;
    }
  /** It was never sent: everything reserved is returned. */
  | { readonly kind: 'dropped' }
  /**
   * Not sent now (the ceiling had no place, or its cost became known): reserved units are returned, the ticket is back
   * at its place, the lane sleeps.
   */
  | {
      readonly kind: 'returned';
      readonly sleepMs: number;
      /** It is not for want of a place: the lane goes on as before. Absent: one call at a time, until told of places. */
      readonly asBefore?: true;
      /** What the ticket costs from now on; absent = what it cost. The same meters, or fewer. */
      readonly costs?: Costs;
    }
  /** Sent, fate unknown: a capped lane stays taken until the lease expires. */
  | { readonly kind: 'unknown' };

/** What a finished or half-finished attempt taught, with the ages the learning rule needs. */
export interface Lesson {
  readonly feedback: Feedback;
  /** Milliseconds since the call's bytes were handed to the socket. */
  readonly sentAgoMs: number;
  /** Milliseconds since the answer's head arrived. */
  readonly headAgoMs: number;
}

/** Things the limiter tells its replica without being asked. */
export interface LimiterListener {
  /** A waiting ticket of this replica may be sent. */
  onGrant(grant: Grant): void;
  /** A bucket closed for `closedMs`: waiting tickets that cannot make it should be refused now. */
  onClosed(bucket: BucketKey, closedMs: number): void;
}

export interface Limiter {
  /** Enters the ticket into its lane. Idempotent by ticket. */
  admit(admission: Admission): Promise<AdmissionReply>;
  /** Ends a lease, once; late or repeated settlements are ignored. */
  settle(grant: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void>;
  /** Learns from an answer whose call is still in flight (streams). */
  learn(grant: Grant, lesson: Lesson): Promise<void>;
  /**
   * The granted call took a place under a ceiling that is nearly used: `places` remain now, the next one frees in
   * `nextPlaceMs`; `Infinity` places: it is not nearly used any more. Told only at the edge and when leaving it, so
   * that no later call slips into the last place before an earlier one.
   */
  charged(grant: Grant, places: number, nextPlaceMs: number): Promise<void>;
  /** A waiting ticket leaves. */
  cancel(bucket: BucketKey, ticket: string): Promise<void>;
  /** Current expected wait of a ticket that already waits, milliseconds; `null` if it does not wait. */
  forecast(
    bucket: BucketKey,
    ticket: string,
  ): Promise<{ readonly waitMs: number; readonly ahead: number } | null>;
  /** State of the buckets this replica has touched, for gauges and activity. */
  snapshot(): readonly BucketSnapshot[];
  close(): Promise<void>;
}

export interface MeterSnapshot {
  readonly meter: MeterName;
  readonly limit: number;
  readonly level: number;
  readonly windowMs: number;
}

export interface BucketSnapshot {
  readonly bucket: BucketKey;
  readonly closedMs: number;
  readonly waiting: number;
  readonly inFlight: number;
  readonly meters: readonly MeterSnapshot[];
}
