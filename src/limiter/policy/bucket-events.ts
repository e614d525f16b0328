/** What can happen to a bucket, and what is answered. Types only; `scheduler.policy.ts` says what they mean. */
import type {
  Admission,
  AdmissionReply,
  BucketSetting,
  CeilingEdge,
  LaneKey,
  LaneSetting,
  LeaseToken,
  Reserved,
  Reserving,
  Settlement,
  TicketId,
} from '../limiter.ts';
import type { TimedLesson } from './lessons.policy.ts';

/** An admission as a log takes it: times are the log's. */
export interface StoredAdmission extends Omit<Admission, 'bucket'> {
  /** How long a granted lease lives without renewal, milliseconds. */
  readonly leaseMs: number;
}

export type BucketEvent =
  /** Enters a ticket into its lane, or refuses it. */
  | { readonly kind: 'admit'; readonly admission: StoredAdmission }
  /** The client of a refused call will come back: its position is kept. */
  | { readonly kind: 'reserve'; readonly admission: StoredAdmission; readonly reserving: Reserving }
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
  | { readonly kind: 'slot_taken'; readonly lease: LeaseToken; readonly edge: CeilingEdge | null }
  /** A waiting ticket leaves. */
  | { readonly kind: 'cancel'; readonly ticket: TicketId }
  /** New settings hold for the bucket and these lanes. */
  | {
      readonly kind: 'reconfigure';
      readonly setting: BucketSetting;
      readonly lanes: readonly (LaneSetting & { readonly lane: LaneKey })[];
    }
  /** A slot of the lane's ceiling came back in another bucket: the lane does not sleep for its ceiling any more. */
  | { readonly kind: 'wake'; readonly lane: LaneKey }
  /** An operator reopens what a response closed up to this many milliseconds ago. */
  | { readonly kind: 'open'; readonly agoMs: number };

export type AdmitReply =
  /** `expiresAt`: of the lease, on the log's time. `order`: the position, to be given back if it must be entered again. */
  | {
      readonly kind: 'granted';
      readonly order: number;
      readonly lease: LeaseToken;
      readonly expiresAt: number;
    }
  | (Extract<AdmissionReply, { kind: 'queued' }> & { readonly order: number })
  | Exclude<Extract<AdmissionReply, { kind: 'refused' }>, { reason: 'limiter_unavailable' }>;

export type ReserveReply = { readonly kind: 'reserved' } & Reserved;

export type EventReply =
  | AdmitReply
  | ReserveReply
  /** To an event that names a lease. False: it had ended or was lost. */
  | { readonly kind: 'lease'; readonly known: boolean }
  | { readonly kind: 'done' };
