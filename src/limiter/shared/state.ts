/**
 * The state that every replica has of one log: the buckets of one upstream credential. It changes only by `fold` (`fold.ts`), and
 * everything that decides is in it: two replicas with the same state and the same entry do the same.
 */
import type { BucketKey, LaneKey, LeaseToken, ReplicaId, TicketId } from '../../ids.ts';
import type { Costs } from '../../call.ts';
import type { BucketSetting, LaneSetting } from '../limiter.ts';
import type { BucketEvent, EventReply, StoredAdmission } from '../policy/bucket-events.ts';
import type { Granted } from '../policy/grant.policy.ts';

/** A call that was sent under a grant which the state does not have. */
export interface HeldCall {
  readonly bucket: BucketKey;
  readonly lane: LaneKey;
  readonly ticket: TicketId;
  readonly lease: LeaseToken;
  readonly order: number;
  readonly callClass: string;
  readonly costs: Costs;
  readonly setting: BucketSetting;
  readonly laneSetting: LaneSetting;
}

/** Units of calls that ended, granted by entries that may have been lost. */
export interface UsedUnits {
  readonly bucket: BucketKey;
  readonly costs: Costs;
}

/** What a replica appends. */
export type LogEvent =
  /** Something happens in one bucket. A bucket that does not exist begins with an `admit`, and is passed over otherwise. */
  | {
      readonly kind: 'in';
      readonly bucket: BucketKey;
      readonly event: Exclude<BucketEvent, { kind: 'admit' | 'forecast' | 'tick' }>;
    }
  | { readonly kind: 'admit'; readonly bucket: BucketKey; readonly admission: StoredAdmission }
  /** Time goes on: whatever is due happens. Also says that the replica lives. */
  | { readonly kind: 'tick' }
  /** In this term the replica has these calls under way, and these that have ended: it has nothing else to say of what was lost. */
  | {
      readonly kind: 'here';
      readonly term: number;
      readonly held: readonly HeldCall[];
      readonly used: readonly UsedUnits[];
    };

/** A grant, and in which bucket. */
export interface SharedGrant extends Granted {
  readonly bucket: BucketKey;
  /** The log's time, milliseconds. */
  readonly at: number;
}

/** What an entry did. */
export interface Effects {
  /** One for each event of an entry of the replica that folds it; empty for entries of others. `null` = no bucket knew of it. */
  readonly replies: readonly (EventReply | null)[];
  /** Of all replicas, in the order in which they were made. */
  readonly grants: readonly SharedGrant[];
  /** Buckets that a response closed, and for how long from the entry's time. */
  readonly closed: readonly { readonly bucket: BucketKey; readonly closedMs: number }[];
  /** When something is due that needs an entry, on the log's time; `null` = nothing before the next event. */
  readonly nextAt: number | null;
  /** A new term has begun with this entry: every replica says `here`. */
  readonly beginsTerm: boolean;
}

export type { ReplicaId };
