/**
 * The one protocol of a bucket: `apply(bucket, replica, events, now) -> replies`. What can happen to a bucket, and what
 * is answered, as types only; `apply.policy.ts` says what they mean, `event-codec.ts` how they are written for Redis and read back.
 */
import type {
  Admission,
  AdmissionReply,
  BucketSetting,
  CeilingEdge,
  LaneKey,
  LaneSetting,
  LeaseToken,
  MeterSnapshot,
  Settlement,
  WaitForecast,
  TicketId,
} from '../limiter.ts';
import type { TimedLesson } from './lessons.policy.ts';

/** An admission as a store takes it: times are on the store's own clock, `null` = the time at which it is applied. */
export type StoredAdmission = Omit<Admission, 'position' | 'bucket'> & {
  /** How long a granted lease lives without renewal, milliseconds. */
  readonly leaseMs: number;
  readonly position:
    | { readonly kind: 'arrival'; readonly at: number | null }
    | { readonly kind: 'kept'; readonly order: number };
};

/** Every event is safe to repeat: a store that may have applied it is asked again. */
export type BucketEvent =
  /** Enters a ticket into its lane, or refuses it. */
  | { readonly kind: 'admit'; readonly admission: StoredAdmission }
  /** Ends a lease, and learns from its response. */
  | {
      readonly kind: 'settle';
      readonly lease: LeaseToken;
      readonly settlement: Settlement;
      readonly lesson: TimedLesson | null;
    }
  /** Learns from a response whose call goes on. */
  | { readonly kind: 'learn'; readonly lease: LeaseToken; readonly lesson: TimedLesson }
  /** The lease took a slot of a ceiling that is nearly used; `null` = it is not nearly used any more. */
  | { readonly kind: 'charge'; readonly lease: LeaseToken; readonly edge: CeilingEdge | null }
  /** A waiting ticket leaves. */
  | { readonly kind: 'cancel'; readonly ticket: TicketId }
  /** Where a waiting ticket stands; changes nothing. */
  | { readonly kind: 'forecast'; readonly ticket: TicketId }
  /** The replica lives, and goes on holding these leases. Without any it is the pump that a reply asked for. */
  | { readonly kind: 'tick'; readonly leases: readonly LeaseToken[] }
  /** New settings hold for the bucket and these lanes. */
  | {
      readonly kind: 'reconfigure';
      readonly setting: BucketSetting;
      readonly lanes: readonly (LaneSetting & { readonly lane: LaneKey })[];
    }
  /** A slot of the lane's ceiling came back in another bucket: the lane does not sleep for its ceiling any more. */
  | { readonly kind: 'wake'; readonly lane: LaneKey }
  /** An operator reopens what a response closed up to this time of the store's clock; `null` = until now. */
  | { readonly kind: 'open'; readonly before: number | null };

export type EventKind = BucketEvent['kind'];

export type AdmitReply =
  /** `expiresAt`: of the lease, on the store's clock. `order`: the position, to be given back if it must be entered again. */
  | {
      readonly kind: 'granted';
      readonly order: number;
      readonly lease: LeaseToken;
      readonly expiresAt: number;
    }
  | (Extract<AdmissionReply, { kind: 'queued' }> & { readonly order: number })
  | Exclude<Extract<AdmissionReply, { kind: 'refused' }>, { reason: 'limiter_unavailable' }>;

/** False: the lease had ended or was lost. */
export interface LeaseReply {
  readonly kind: 'lease';
  readonly known: boolean;
}

/** The ticket does not wait. One that was granted in the meantime has a grant on its way. */
export interface CancelReply {
  readonly kind: 'cancel';
}

/** `null`: the ticket does not wait. */
export interface ForecastReply {
  readonly kind: 'forecast';
  readonly forecast: WaitForecast | null;
}

export interface TickReply {
  readonly kind: 'tick';
  /** Tickets of this replica that wait in the bucket. */
  readonly waitingHere: number;
  readonly meters: readonly MeterSnapshot[];
  /** Of the named leases, those that the bucket does not have for this replica (any more). */
  readonly missing: readonly LeaseToken[];
}

export interface ReconfigureReply {
  readonly kind: 'reconfigure';
}

export interface WakeReply {
  readonly kind: 'wake';
}

export interface OpenReply {
  readonly kind: 'open';
}

export interface ReplyOf {
  readonly admit: AdmitReply;
  readonly settle: LeaseReply;
  readonly learn: LeaseReply;
  readonly charge: LeaseReply;
  readonly cancel: CancelReply;
  readonly forecast: ForecastReply;
  readonly tick: TickReply;
  readonly reconfigure: ReconfigureReply;
  readonly wake: WakeReply;
  readonly open: OpenReply;
}

export type EventReply = ReplyOf[EventKind];
