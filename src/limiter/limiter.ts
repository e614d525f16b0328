/**
 * What the journey asks of the state that all replicas share, and what the limiter (`over-log/limiter.ts`) replies. Types and constants.
 *
 * A call asks to be admitted into a bucket, gets a grant now or later through `onGrant`, and ends the grant's lease
 * exactly once with `settle`. Waiting happens in the limiter; timers of the caller's own deadline do not.
 */
import type { BucketSnapshot, MeterSnapshot } from '../bucket.ts';
import type { Feedback, MeterName, Costs } from '../call.ts';
import type { HeldBy } from '../errors.ts';
import type { BucketKey, CallerKey, CeilingKey, LaneKey, LeaseToken, TicketId } from '../ids.ts';

export type { BucketKey, BucketSnapshot, LaneKey, LeaseToken, MeterSnapshot, TicketId };

/** Stated or default limit of one meter, used until a response teaches better. */
export interface MeterSetting {
  readonly meter: MeterName;
  /** Capacity in units. */
  readonly limit: number;
  /** Time in which `limit` units drain, milliseconds. */
  readonly windowMs: number;
  /** The upstream counts each window of this length, or those that the clock begins; absent: the level drains continuously. */
  readonly counts?: 'rolling' | 'fixed';
}

/** Properties of the bucket, sent along with every admission so that the store needs no configuration of its own. */
export interface BucketSetting {
  readonly meters: readonly MeterSetting[];
  /** False: reported limits never raise a stated one. */
  readonly learn: boolean;
  /** Grants outstanding before the first response taught the level; 0 = the bucket starts open. */
  readonly probe: number;
  /** Grants in flight over all lanes; absent: any number. */
  readonly maxInFlightTotal?: number;
}

/** Properties of a lane that configuration decides; the latest ones given hold. */
export interface LaneSetting {
  /** Share of the bucket relative to the other lanes; > 0. */
  readonly weight: number;
  /** Grants in flight per lane; `null` = unlimited. */
  readonly maxInFlight: number | null;
  /** Sends per minute that the workspace's ceiling allows; `null` = it has none. Forecasts look ahead by it. */
  readonly perMinute: number | null;
  /**
   * Stands for the limits of the workspace's ceiling, as an `ETag` stands for a text: opaque, equal while they are equal
   * (`AdmissionRequest.ceiling` has the limits themselves). A lane that sleeps because of its ceiling wakes when another tag
   * comes: the limit for which it slept does not hold any more.
   */
  readonly ceilingTag: string;
}

/** Where a ticket stands among the tickets of its lane and urgency. */
export type Position =
  /** At the time at which this process had received the call, monotonic milliseconds. */
  | { readonly kind: 'arrival'; readonly at: number }
  /** The order that a store gave it before: it is entered again, and never refused. */
  | { readonly kind: 'kept'; readonly order: number };

/** A call of this urgency is a background call, whatever its workspace and its key are: its lane is the background lane. */
export const backgroundUrgency = 7;

/** A call asking to enter its lane. */
export interface Admission extends LaneSetting {
  readonly ticket: TicketId;
  readonly bucket: BucketKey;
  readonly setting: BucketSetting;
  readonly lane: LaneKey;
  /** Tickets waiting in the lane at most. */
  readonly maxQueued: number;
  /** RFC 9218 urgency 0 (first) to 7; 3 is normal. Orders within the lane only. */
  readonly urgency: number;
  /** Which meters the call takes from, as a word; all tickets of one class in one bucket use the same meters. */
  readonly callClass: string;
  /** Who of the workspace calls: the lane's turns are shared fairly between callers. Absent: nobody is named. */
  readonly caller?: CallerKey;
  readonly costs: Costs;
  /**
   * Names what the call asks for (a digest of a GraphQL document and its variables) where only a response states what that
   * costs; `null` = `costs` are all there is to know. What a response stated holds for every call of the same name.
   */
  readonly document: string | null;
  /** How long the call may still wait, milliseconds. Beyond it the admission is refused at once. */
  readonly maxWaitMs: number;
  readonly position: Position;
  /** What was kept for it when it was refused before; absent: it is a new call. */
  readonly reservation?: TicketId;
}

/**
 * Who came back for a reservation may wait this long, however little the call itself may: responses of others move the time by a part of
 * a second, and nobody is refused a second time for that. Milliseconds.
 */
export const returnGraceMs = 500;

/** A refused call keeps its position, of which its client is told the time. */
export interface Reserving {
  /** The ceiling of the workspace on the upstream. */
  readonly ceiling: CeilingKey;
  /** It cannot leave before that, whatever the bucket allows. Milliseconds from now. */
  readonly waitMs: number;
  /** How long after the told time its client may come back, milliseconds. */
  readonly lastsMs: number;
  /** Reservations under the ceiling at most. */
  readonly maxReserved: number;
  /** False: only what is kept already is kept further. */
  readonly begins: boolean;
  /** Names what is kept, where the call names itself and nothing is kept under that name; absent: its ticket does. */
  readonly name?: TicketId;
}

/** What is kept of a refused call: after `waitMs` its client may come back; `ahead` counts reservations, too. */
export interface Reserved extends WaitForecast {
  readonly id: TicketId;
}

/** How long a lease lives without renewal: after this the lane of a dead replica goes on (docs/adr/0004). Milliseconds. */
export const defaultLeaseMs = 15_000;

/** Permission to send one ticket now. */
export interface Grant {
  readonly ticket: TicketId;
  readonly bucket: BucketKey;
  readonly lane: LaneKey;
  /** Owner token: only its owner can settle. */
  readonly lease: LeaseToken;
  /** The lane or the bucket counts calls in flight: the lease has to last until the call has ended. */
  readonly holdsPlace: boolean;
  /** A background call that leaves before all others, as none has for a minute: it may take what a ceiling has left for others. */
  readonly isDue?: true;
  /** Monotonic milliseconds of this process after which the lease must be taken for lost. */
  readonly expiresAt: number;
}

/** How many slots of a ceiling a call leaves for reservations of earlier calls, and for how long as many at most, milliseconds. */
export interface KeptSlots {
  readonly count: number;
  readonly forMs: number;
}

/** Response to an admission. */
export type AdmissionReply =
  | { readonly kind: 'granted'; readonly grant: Grant }
  /** Waiting: `forecastMs` is the expected wait, `ahead` how many tickets of the lane go first. */
  | {
      readonly kind: 'queued';
      readonly forecastMs: number;
      readonly ahead: number;
      /** Which cause makes the call wait longest; `queue` = only the calls before it. */
      readonly heldBy: HeldBy;
    }
  | {
      readonly kind: 'refused';
      readonly reason: 'queue_full' | 'wait_too_long';
      /** Which cause would have made the call wait longest. */
      readonly heldBy: HeldBy;
      readonly retryInMs: number;
      /** Tickets of its lane that would have gone first. */
      readonly ahead: number;
    }
  | { readonly kind: 'refused'; readonly reason: 'limiter_unavailable'; readonly retryInMs: number };

/** What keeps a call for longest, and for how long, milliseconds; 0 = not at all. */
export interface Hold {
  readonly waitMs: number;
  readonly heldBy: HeldBy;
}

/** How long a waiting ticket is expected to wait yet, and why. */
export interface WaitForecast extends Hold {
  /** Tickets of its lane that go first. */
  readonly ahead: number;
}

/** Why a lane does not send for a while. */
export type SleepReason =
  /** The workspace's ceiling has no slot before that. */
  | 'ceiling_minute'
  | 'ceiling_day'
  /** A response, or a failure, named a time that concerns this lane alone. */
  | 'backoff'
  /** In a new term of the shared log: a call of the lane may be under way that its replica has not reported yet. */
  | 'term'
  /** The ceiling has no slot but those that are kept for reservations: calls that come back for one go on. */
  | 'reserved';

/**
 * There is nothing to forecast for the ticket: it is granted already and its grant comes through `onGrant`, it has moved to another
 * store, or it was withdrawn, so that nobody reads the reply.
 */
export const queuedWithoutForecast = {
  kind: 'queued',
  forecastMs: 0,
  ahead: 0,
  heldBy: 'queue',
} as const satisfies AdmissionReply;

/** How a lease ends. Times ago are measured on the owner's monotonic clock. */
export type Settlement =
  /** The upstream answered; the call is done. `spent` corrects reserved units where the final charge is known. */
  | { readonly kind: 'succeeded'; readonly spent: Costs | null }
  /** The upstream refused to run it. `requeue` puts the ticket back at its position; `closeMs` closes the bucket for all. */
  | {
      readonly kind: 'throttled';
      readonly closeMs: number;
      /** It closes every bucket of the log, of which all calls carry the credential. */
      readonly closesCredential?: true;
      readonly requeue: boolean;
      /** The lane alone waits this long (back-off that concerns only this call); 0 = not at all. */
      readonly sleepMs: number;
    }
  /** The call was never sent: its reserved units are returned, and its lane does not sleep for the ceiling any more. */
  | { readonly kind: 'dropped' }
  /**
   * The call is not sent now: its reserved units are returned, its ticket is back at its position, its lane sleeps. After a refusal
   * of the ceiling (`because`) the lane sends one call at a time until slots are reported for it (`slotTaken`). With any other
   * `because` the call had taken a slot, and has given it back.
   */
  | {
      readonly kind: 'returned';
      readonly sleepMs: number;
      readonly because: Exclude<SleepReason, 'term'>;
      /** The limits of the ceiling that refused it (as in `LaneSetting`); absent: those that the lane has. */
      readonly ceilingTag?: string;
    }
  /** Sent, fate unknown: its place in a capped lane or bucket stays taken until the lease expires. */
  | { readonly kind: 'unknown' };

/** What a finished or half-finished attempt taught, with the ages the learning rule needs. */
export interface Lesson {
  readonly feedback: Feedback;
  /** Milliseconds since the call's bytes were handed to the socket. */
  readonly sentAgoMs: number;
  /** Milliseconds since the response's head arrived. */
  readonly headAgoMs: number;
}

/** What is left of a ceiling that is nearly used. */
export interface CeilingEdge {
  /** Slots left. */
  readonly slots: number;
  /** Until the next slot frees, milliseconds. */
  readonly nextSlotMs: number;
  /** The limits (as in `LaneSetting`) under which that was found; absent: those that the lane has. */
  readonly ceilingTag?: string;
}

/** A ceiling of which few slots are left. It has none for `waitMs`; 0 = it may have one. */
export interface LaneCeiling extends Hold {
  /** Calls that wait in the lane, at all replicas. */
  readonly waiting: number;
}

/** New settings of a bucket and of lanes in it. */
export interface Reconfiguration {
  readonly bucket: BucketKey;
  readonly setting: BucketSetting;
  readonly lanes: readonly (LaneSetting & { readonly lane: LaneKey })[];
}

/** What the limiter reports to its replica without being asked. */
export interface LimiterListener {
  /** A waiting ticket of this replica may be sent. */
  onGrant(grant: Grant): void;
  /** A bucket closed for `closedMs`: waiting tickets that cannot make it should be refused now. */
  onClosed(bucket: BucketKey, closedMs: number): void;
}

/** Calls of one caller that wait, and that have been granted and not ended. */
export interface CallerNow {
  readonly caller: CallerKey;
  readonly waiting: number;
  readonly inFlight: number;
}

// What a replica does while Redis is unavailable; limiter and ceilings do the same.

export type WhenDown = 'local' | 'deny';

/** Whether this replica has ever reached Redis. */
export type RedisContact =
  /** It has, or none is configured. */
  | { readonly kind: 'reached' }
  | {
      readonly kind: 'never';
      /** The time of `redis.startSeconds` has not passed yet. */
      readonly isAwaited: boolean;
      /** Of every limit it takes one part in so many; `null` = it refuses calls. */
      readonly replicas: number | null;
    };

/** `Retry-After` of a call that is refused because Redis is unavailable. Milliseconds. */
export const retryUnavailableMs = 1_000;

/** This replica's part of a limit while Redis is unavailable: an equal share, rounded down, at least 1. */
export const quotaShare = (limit: number, replicas: number): number =>
  Math.max(1, Math.floor(limit / Math.max(1, replicas)));
